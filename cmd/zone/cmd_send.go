package main

import (
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/ui"
	"zone/internal/zone"
)

func newSendCommand(a *app) *cobra.Command {
	var spec zone.SendSpec
	c := &cobra.Command{
		Use: "send NAME[@SNAP]", Short: "write a zone to standard output as one stream",
		Long: "Writes a zone's root, as it is now or at a snapshot, with the image and layers that it\n" +
			"stands on, its configuration and its identity. Snapshots and boot environments are not\n" +
			"part of it. The zone may be running; what it holds in memory and has not written is not\n" +
			"in the stream.",
		Example: "  zone send web1 | ssh other zone receive\n  zone send --portable web1@before | zstd >web1.zone.zst",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			spec.Zone, spec.Snapshot = args[0], ""
			if strings.Contains(args[0], "@") {
				var err error
				if spec.Zone, spec.Snapshot, err = splitSnapshot(args[0]); err != nil {
					return err
				}
			}
			if ui.IsTerminal(a.stdout) {
				return errdefs.New(errdefs.Usage, "send "+args[0], "a stream is not for a terminal to show").
					WithHint("zone send %s >FILE", args[0])
			}
			s, err := a.zones(cmd.Context())
			if err != nil {
				return err
			}
			// A reader that goes away must not keep this one from clearing up.
			pipe := make(chan os.Signal, 1)
			signal.Notify(pipe, syscall.SIGPIPE)
			defer signal.Stop(pipe)
			return s.Send(cmd.Context(), spec, a.stdout)
		},
	}
	c.Flags().BoolVar(&spec.Portable, "portable", false, "as tar archives, which pools of every kind can receive")
	return c
}

func newReceiveCommand(a *app) *cobra.Command {
	var spec zone.ReceiveSpec
	c := &cobra.Command{
		Use: "receive [NAME]", Short: "make a zone of a stream on standard input",
		Long: "Makes a zone of what `zone send` wrote, under its own name or another. Image and layers\n" +
			"that the pool has already are used from there. The zone keeps its identity, and its\n" +
			"address if that is free; where this host has a zone of the same identity, it gets one of\n" +
			"its own. A stream that is damaged or ends early leaves nothing behind.",
		Example: "  zone send web1 | zone receive copy\n  ssh other zone send web1 | zone receive",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				spec.Zone = args[0]
				if err := config.ValidName(spec.Zone); err != nil {
					return err
				}
			}
			if ui.IsTerminal(a.stdin) {
				return errdefs.New(errdefs.Usage, "receive", "no stream comes from a terminal").WithHint("zone receive <FILE")
			}
			s, err := a.zones(cmd.Context())
			if err != nil {
				return err
			}
			name, err := s.Receive(cmd.Context(), spec, a.stdin)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(a.stdout, name)
			return err
		},
	}
	c.Flags().StringVar(&spec.Pool, "pool", "", "pool to keep it in (default "+zone.DefaultPool+")")
	return c
}

func newMoveCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "move NAME POOL", Short: "move a halted zone to another pool",
		Long: "Takes a zone to another pool of this host, with its snapshots, its boot environments and\n" +
			"what they stand on. Identity and address stay. The old place is removed when the new one\n" +
			"is whole; each snapshot takes its full size there.",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.zones(cmd.Context())
			if err != nil {
				return err
			}
			return s.Move(cmd.Context(), args[0], args[1])
		},
	}
}
