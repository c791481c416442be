package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"zone/internal/errdefs"
	"zone/internal/ui"
	"zone/internal/zone"
)

// beCommand is what all commands on boot environments share.
type beCommand struct {
	a    *app
	zone string
}

// open returns the service for a command on the zone's boot environments.
func (b *beCommand) open(ctx context.Context) (*zone.Service, error) {
	if b.zone == "" {
		return nil, errdefs.New(errdefs.NotSupported, "boot environments of the host", "they are not supported by this version; those of zones are").
			WithHint("add -z ZONE")
	}
	return b.a.zones(ctx)
}

func newBECommand(a *app) *cobra.Command {
	b := &beCommand{a: a}
	c := &cobra.Command{
		Use: "be", Short: "keep several roots of a zone and choose which it boots",
		Long: "A boot environment is one of several roots of a zone, each writable and with a name. The\n" +
			"zone runs from the active one; the others share the disk blocks they have in common with\n" +
			"it. Configuration and address belong to the zone and are the same for all.",
		Example: "  zone be create -z web1 before-upgrade -d 'known good'\n" +
			"  zone be list -z web1\n" +
			"  zone be activate -z web1 before-upgrade && zone reboot web1",
	}
	c.PersistentFlags().StringVarP(&b.zone, "zone", "z", "", "the zone")
	c.AddCommand(b.list(), b.create(), b.activate(), b.rename(), b.destroy())
	return c
}

func (b *beCommand) list() *cobra.Command {
	opt := ui.ListOptions{Key: "boot_environments"}
	c := &cobra.Command{
		Use: "list -z ZONE [BE]", Short: "list boot environments, oldest first",
		Long: "Lists the boot environments of a zone. In the column active, N marks the one that is the\n" +
			"zone's root now and R the one it has from its next boot.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := b.open(cmd.Context())
			if err != nil {
				return err
			}
			list, err := s.BootEnvs(cmd.Context(), b.zone)
			if err != nil {
				return err
			}
			if len(args) == 1 {
				if list, err = onlyBE(list, b.zone, args[0]); err != nil {
					return err
				}
			}
			opt.Format = b.a.format
			return ui.List(b.a.stdout, opt, beColumns(), list)
		},
	}
	c.Flags().BoolVarP(&opt.Quiet, "quiet", "q", false, "names only")
	c.Flags().StringSliceVar(&opt.Columns, "columns", nil, "columns to show, by name")
	return c
}

func onlyBE(list []zone.BootEnv, name, wanted string) ([]zone.BootEnv, error) {
	for _, be := range list {
		if be.Name == wanted {
			return []zone.BootEnv{be}, nil
		}
	}
	return nil, errdefs.New(errdefs.NotFound, "boot environment "+wanted, "zone %s has none of this name", name).
		WithHint("zone be list -z %s", name)
}

func beColumns() []ui.Column[zone.BootEnv] {
	return []ui.Column[zone.BootEnv]{
		{Name: "name", Value: func(b zone.BootEnv) string { return b.Name }},
		{Name: "active", Value: func(b zone.BootEnv) string { return b.Active }},
		{Name: "used", Right: true, Value: func(b zone.BootEnv) string {
			if b.Used < 0 {
				return ""
			}
			return ui.Bytes(b.Used)
		}},
		{Name: "created", Value: func(b zone.BootEnv) string { return b.Created.Local().Format(time.DateTime) }},
		{Name: "description", Value: func(b zone.BootEnv) string { return b.Description }},
		{Name: "zone", Hidden: true, Value: func(b zone.BootEnv) string { return b.Zone }},
	}
}

func (b *beCommand) create() *cobra.Command {
	var spec zone.BESpec
	c := &cobra.Command{
		Use: "create -z ZONE BE", Short: "copy a root of a zone to a new boot environment",
		Long: "Copies the active root, or that of -e, on write. The zone may be running; what it holds\n" +
			"in memory and has not written is not in the copy.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := b.open(cmd.Context())
			if err != nil {
				return err
			}
			spec.Zone, spec.Name = b.zone, args[0]
			return s.CreateBE(cmd.Context(), spec)
		},
	}
	c.Flags().StringVarP(&spec.Description, "description", "d", "", "a line of text to remember it by")
	c.Flags().StringVarP(&spec.From, "from", "e", "", "boot environment or snapshot to copy; @SNAP means the snapshot")
	c.Flags().BoolVarP(&spec.Activate, "activate", "a", false, "activate it too")
	return c
}

func (b *beCommand) activate() *cobra.Command {
	return &cobra.Command{
		Use: "activate -z ZONE BE", Short: "make a boot environment the root of a zone",
		Long: "Makes a boot environment the zone's root: at once when the zone does not run, else from\n" +
			"its next boot. The root that is replaced stays as a boot environment. To take the choice\n" +
			"back before the boot, activate the present one.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := b.open(cmd.Context())
			if err != nil {
				return err
			}
			later, err := s.ActivateBE(cmd.Context(), b.zone, args[0])
			if later {
				b.a.note("%s runs and keeps its root; it boots from %s next", b.zone, args[0])
			}
			return err
		},
	}
}

func (b *beCommand) rename() *cobra.Command {
	return &cobra.Command{
		Use: "rename -z ZONE BE NEW", Short: "give a boot environment another name",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := b.open(cmd.Context())
			if err != nil {
				return err
			}
			return s.RenameBE(cmd.Context(), b.zone, args[0], args[1])
		},
	}
}

func (b *beCommand) destroy() *cobra.Command {
	var force, dryRun bool
	c := &cobra.Command{
		Use: "destroy -z ZONE BE", Short: "remove a boot environment that is not active",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := b.open(cmd.Context())
			if err != nil {
				return err
			}
			if err := s.CheckDestroyBE(cmd.Context(), b.zone, args[0]); err != nil {
				return err
			}
			if dryRun {
				_, err := b.a.stdout.Write([]byte("would destroy boot environment " + args[0] + " of zone " + b.zone + "\n"))
				return err
			}
			if err := b.a.confirm(cmd.Context(), force, "destroy boot environment "+args[0]+" of zone "+b.zone); err != nil {
				return err
			}
			return s.DestroyBE(cmd.Context(), b.zone, args[0])
		},
	}
	c.Flags().BoolVarP(&force, "force", "F", false, "do not ask")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be destroyed")
	return c
}
