package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/runtime"
	"zone/internal/ui"
	"zone/internal/zone"
)

func newExecCommand(a *app) *cobra.Command {
	var o runtime.ExecOptions
	c := &cobra.Command{
		Use: "exec NAME -- CMD ARG...", Short: "run a command in a running zone",
		Long: "Runs a command in a running zone, inside its limits, and ends with the command's own\n" +
			"exit status. With a terminal on both ends the command gets one of its own.",
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Args = args[1:]
			if o.Args[0] == "--" {
				o.Args = o.Args[1:]
			}
			if len(o.Args) == 0 {
				return errdefs.New(errdefs.Usage, "exec in "+args[0], "no command given").WithHint("zone exec NAME -- CMD ARG...")
			}
			o.Terminal = ui.IsTerminal(a.stdin) && ui.IsTerminal(a.stdout)
			return a.execIn(cmd.Context(), "exec in", args[0], o)
		},
	}
	c.Flags().SetInterspersed(false)
	c.Flags().StringArrayVarP(&o.Env, "env", "e", nil, "KEY=VALUE for its environment, repeatable")
	c.Flags().StringVarP(&o.Dir, "cwd", "C", "", "directory to start in")
	c.Flags().StringVarP(&o.User, "user", "u", "", "user name, or UID[:GID], to run as")
	return c
}

func newLoginCommand(a *app) *cobra.Command {
	user := "root"
	c := &cobra.Command{
		Use: "login NAME", Short: "open a login shell in a running zone",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.light(cmd.Context(), "login", args[0])
			if err != nil {
				return err
			}
			u, err := s.User(args[0], user)
			if err != nil {
				return err
			}
			o := runtime.ExecOptions{
				Args: []string{u.Shell, "-l"}, Dir: u.Home, Terminal: ui.IsTerminal(a.stdin) && ui.IsTerminal(a.stdout),
				Env: []string{"HOME=" + u.Home, "USER=" + user, "LOGNAME=" + user, "SHELL=" + u.Shell},
			}
			if user != "root" {
				o.Args, o.Dir = []string{"su", "-", user}, ""
			}
			return a.execIn(cmd.Context(), "login", args[0], o)
		},
	}
	c.Flags().StringVarP(&user, "user", "l", user, "log in as this user")
	return c
}

// execIn replaces this process by the engine's, so that signals, terminal and
// exit status are the command's own and nothing of ours stays behind.
func (a *app) execIn(ctx context.Context, op, name string, o runtime.ExecOptions) error {
	s, err := a.light(ctx, op, name)
	if err != nil {
		return err
	}
	if o.Terminal {
		o.Env = append(o.Env, "TERM="+os.Getenv("TERM"))
	}
	if o.User != "" && strings.Trim(o.User, "0123456789:") != "" {
		u, err := s.User(name, o.User)
		if err != nil {
			return err
		}
		o.User = u.UID + ":" + u.GID
		o.Env = append([]string{"HOME=" + u.Home, "USER=" + u.Name}, o.Env...)
	}
	switch err := s.FindCommand(name, o.Args[0]); {
	case errors.Is(err, zone.ErrNoCommand):
		return exitCode{127, errdefs.New(errdefs.Failed, "exec in "+name, "%s: %v", o.Args[0], err)}
	case errors.Is(err, zone.ErrNotExecutable):
		return exitCode{126, errdefs.New(errdefs.Failed, "exec in "+name, "%s: %v", o.Args[0], err)}
	}
	argv, err := s.ExecArgv(name, o)
	if err != nil {
		return err
	}
	return fmt.Errorf("start %s: %w", argv[0], syscall.Exec(argv[0], argv, os.Environ()))
}

// light returns the service for the command op inside a running zone, which needs
// neither pools nor the private mount namespace. When the zone does not run,
// the long way round finds out why.
func (a *app) light(ctx context.Context, op, name string) (*zone.Service, error) {
	if err := config.ValidName(name); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, a.enter()
	}
	s, err := a.service()
	if err != nil {
		return nil, err
	}
	if _, err := s.ExecArgv(name, runtime.ExecOptions{}); err == nil {
		return s, nil
	}
	if s, err = a.zones(ctx); err != nil {
		return nil, err
	}
	st, err := s.State(ctx, name)
	if err != nil {
		return nil, err
	}
	if st != zone.Running && st != zone.Mounted {
		return nil, errdefs.New(errdefs.WrongState, op+" "+name, "the zone is %s; allowed when it is running", st).
			WithHint("zone boot %s", name)
	}
	return s, nil
}

func newLogCommand(a *app) *cobra.Command {
	follow := false
	c := &cobra.Command{
		Use: "log NAME", Short: "show what a zone's first process printed",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.zones(cmd.Context())
			if err != nil {
				return err
			}
			if _, err := s.Find(cmd.Context(), args[0]); err != nil {
				return err
			}
			f, err := os.Open(filepath.Join(a.home, "log", args[0]+".log"))
			if errors.Is(err, fs.ErrNotExist) {
				a.note("zone %s has not been booted yet", args[0])
				return nil
			}
			if err != nil {
				return err
			}
			defer f.Close()
			return copyLog(cmd.Context(), a.stdout, f, follow)
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on as it grows")
	return c
}

const followPause = 200 * time.Millisecond

func copyLog(ctx context.Context, w io.Writer, f *os.File, follow bool) error {
	for {
		if _, err := io.Copy(w, f); err != nil || !follow {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(followPause):
		}
	}
}

// definitionFile reads a zone definition; no file is the empty definition.
func definitionFile(file string) (config.Zone, error) {
	if file == "" {
		return config.Zone{}, nil
	}
	data, err := readInput(file)
	if err != nil {
		return config.Zone{}, errdefs.Wrap(errdefs.Usage, "read definition", err)
	}
	return config.Parse(strings.TrimPrefix(file, "./"), data)
}

// maxDefinition is far above any definition a person writes.
const maxDefinition = 1 << 20

// readInput reads a regular file, or standard input for "-", of a sane size.
func readInput(file string) ([]byte, error) {
	f := os.Stdin
	if file != "-" {
		var err error
		// O_NONBLOCK: a named pipe is refused below and must not wait for a writer.
		if f, err = os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0); err != nil {
			return nil, err
		}
		defer f.Close()
		if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
			return nil, fmt.Errorf("%s: not a regular file", file)
		}
	}
	data, err := io.ReadAll(io.LimitReader(f, maxDefinition+1))
	if len(data) > maxDefinition {
		return nil, fmt.Errorf("%s: more than %d bytes", file, maxDefinition)
	}
	return data, err
}
