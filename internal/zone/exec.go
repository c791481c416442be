package zone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/runtime"
	"zone/internal/stat"
)

// Command is something to run inside a zone.
type Command struct {
	Args           []string
	Env            []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Timeout        time.Duration
}

// ExecArgv returns the command line that runs a command in a running or
// mounted zone, inside its limits, and ends with the command's own status.
func (s *Service) ExecArgv(name string, o runtime.ExecOptions) ([]string, error) {
	root, err := s.Root(name)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if err := checkAccounts("exec in "+name, root); err != nil {
		return nil, err
	}
	return s.Engine.ExecArgv(name, o), nil
}

// Exec runs a command in a running or mounted zone, inside its limits, and
// waits for it. A status other than 0 is in the result and is no error.
func (s *Service) Exec(ctx context.Context, name string, c Command) (host.Result, error) {
	argv, err := s.ExecArgv(name, runtime.ExecOptions{Args: c.Args, Env: c.Env})
	if err != nil {
		return host.Result{}, err
	}
	res, err := s.Runner.Run(ctx, host.Cmd{
		Name: argv[0], Args: argv[1:], Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr, Timeout: c.Timeout,
	})
	if err != nil && res.ExitCode > 0 && ctx.Err() == nil {
		return res, nil
	}
	return res, err
}

// User is an entry of a zone's /etc/passwd.
type User struct {
	Name, UID, GID, Home, Shell string
}

// User looks a user up in the zone's /etc/passwd.
func (s *Service) User(name, user string) (User, error) {
	root, err := s.Root(name)
	if err != nil {
		return User{}, err
	}
	defer root.Close()
	data, err := root.ReadFile("/etc/passwd")
	if err != nil && user == "root" {
		return User{Name: user, UID: "0", GID: "0", Home: "/", Shell: "/bin/sh"}, nil // to let somebody in who mends it
	}
	if err != nil {
		return User{}, errdefs.New(errdefs.Failed, "look up user "+user, "/etc/passwd of zone %s cannot be read", name)
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) == 7 && f[0] == user {
			u := User{Name: f[0], UID: f[2], GID: f[3], Home: f[5], Shell: f[6]}
			if u.Shell == "" {
				u.Shell = "/bin/sh"
			}
			return u, nil
		}
	}
	return User{}, errdefs.New(errdefs.NotFound, "zone "+name, "no user %q in it", user)
}

// searchPath is where commands are looked for in a zone.
var searchPath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// ErrNoCommand and ErrNotExecutable tell why a command cannot be started, as a
// shell does by its exit statuses 127 and 126.
var (
	ErrNoCommand     = errors.New("no such command in the zone")
	ErrNotExecutable = errors.New("not an executable file")
)

// FindCommand looks for the program that exec would start for word in a
// running zone. A relative path with a slash is taken to be there.
func (s *Service) FindCommand(name, word string) error {
	root, err := s.Root(name)
	if err != nil {
		return err
	}
	defer root.Close()
	if strings.Contains(word, "/") {
		if !path.IsAbs(word) {
			return nil
		}
		return executable(root, word)
	}
	found := ErrNoCommand
	for _, dir := range searchPath {
		err := executable(root, path.Join(dir, word))
		if err == nil {
			return nil
		}
		if errors.Is(err, ErrNotExecutable) {
			found = err
		}
	}
	return found
}

func executable(root *host.Root, file string) error {
	f, err := root.Open(file, unix.O_PATH, 0)
	if err != nil {
		return ErrNoCommand
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
		return ErrNotExecutable
	}
	return nil
}

// Root opens the files of a running or mounted zone, as its processes see
// them.
func (s *Service) Root(name string) (*host.Root, error) {
	run, err := s.need("open the root of", name, modeBoot, modeScratch)
	if err != nil {
		return nil, err
	}
	fd, err := run.open()
	if err != nil {
		return nil, err
	}
	defer closeFd(fd)
	root, err := host.OpenRoot(procRoot(run.PID))
	if err != nil {
		return nil, err
	}
	if !run.alive() { // the number could have been another process's by now
		_ = root.Close()
		return nil, errdefs.New(errdefs.WrongState, "open the root of "+name, "the zone has just ended")
	}
	return root, nil
}

// StatSources lists the running zones as `zone stat` wants them.
func (s *Service) StatSources(ctx context.Context) ([]stat.Source, error) {
	places, err := s.Places(ctx)
	if err != nil {
		return nil, err
	}
	var list []stat.Source
	for _, at := range places {
		run, err := s.readRunning(at.Name)
		if err != nil || !run.alive() {
			continue
		}
		z := run.Limits
		caps := stat.Caps{
			CPU: z.CappedCPU.NCPUs, Shares: z.CPUShares, Memory: int64(z.CappedMemory.Physical), Swap: -1, Pids: int64(z.MaxLWPs),
		}
		if z.CPUShares == 0 {
			caps.Shares = config.DefaultCPUShares
		}
		if z.CappedMemory.Swap != nil {
			caps.Swap = int64(*z.CappedMemory.Swap)
		}
		list = append(list, stat.Source{Name: at.Name, Group: s.group(at.Name), Caps: caps})
	}
	return list, nil
}

func procRoot(pid int) string { return fmt.Sprintf("/proc/%d/root", pid) }

func closeFd(fd int) { _ = unix.Close(fd) }
