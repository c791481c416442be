package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"zone/internal/errdefs"
	"zone/internal/host"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// Runc drives the runc program. Containers are named by their zone; StateDir
// keeps those of one $ZONE_RUN apart from everybody else's.
type Runc struct {
	Path     string // the program
	StateDir string
	Runner   host.Runner
}

// Find returns a Runc for the program on the PATH, or an error that says how
// to get one.
func Find(stateDir string, r host.Runner) (*Runc, error) {
	path, err := host.LookPath("runc")
	if err != nil {
		return nil, errdefs.New(errdefs.NotSupported, "find runc", "not installed").WithHint("apt-get install runc")
	}
	return &Runc{Path: path, StateDir: stateDir, Runner: r}, nil
}

// Create makes the container of a bundle: namespaces, cgroups and mounts are
// there and its first process waits for Start. Its output goes to log. It
// returns the host's number of that process. It is to be called from within
// host.WithThrowawayMounts: a runc that outlived a killed caller would go on
// making what the next command has just cleared away.
func (r *Runc) Create(ctx context.Context, id, bundle string, log *os.File) (pid int, err error) {
	pidFile := filepath.Join(bundle, "pid")
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	if err := r.run(ctx, bundle, host.Cmd{
		Args:  []string{"create", "--bundle", bundle, "--pid-file", pidFile, id},
		Stdin: null, Stdout: log, Stderr: log, LeavesChildren: true, DiesWithCaller: true,
	}); err != nil {
		return 0, err
	}
	data, err := os.ReadFile(pidFile)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

// Start lets the first process of a created container go.
func (r *Runc) Start(ctx context.Context, id, bundle string) error {
	return r.run(ctx, bundle, host.Cmd{Args: []string{"start", id}})
}

// Delete removes what runc keeps of a container whose processes have ended.
// One that is gone already is success.
func (r *Runc) Delete(ctx context.Context, id string) error {
	if !r.Known(id) {
		return nil
	}
	_, err := r.Runner.Run(ctx, host.Cmd{Name: r.Path, Args: []string{"--root", r.StateDir, "delete", "--force", id}})
	if err == nil {
		return nil
	}
	// A creation that was cut off leaves a directory that runc itself cannot
	// read; nothing runs in it, or the caller's kill would have failed.
	return os.RemoveAll(filepath.Join(r.StateDir, id))
}

// Known reports whether runc keeps anything under this name.
func (r *Runc) Known(id string) bool {
	_, err := os.Stat(filepath.Join(r.StateDir, id))
	return err == nil
}

// ExecOptions say how a command runs inside a container.
type ExecOptions struct {
	Args     []string
	Env      []string
	Dir      string
	User     string // uid[:gid]; empty for root
	Terminal bool   // give it a terminal of its own, joined to the caller's
	PidFile  string // where to write the host's number of the process
}

// ExecArgv returns the command line that runs a command inside the container
// and ends with its exit status.
func (r *Runc) ExecArgv(id string, o ExecOptions) []string {
	argv := []string{r.Path, "--root", r.StateDir, "exec"}
	if o.Terminal {
		argv = append(argv, "--tty")
	}
	if o.PidFile != "" {
		argv = append(argv, "--pid-file", o.PidFile)
	}
	if o.Dir != "" {
		argv = append(argv, "--cwd", o.Dir)
	}
	if o.User != "" {
		argv = append(argv, "--user", o.User)
	}
	for _, e := range o.Env {
		argv = append(argv, "--env", e)
	}
	return append(append(argv, id), o.Args...)
}

// run calls runc with its log in the bundle, so that its reason is known even
// where its standard error belongs to the container.
func (r *Runc) run(ctx context.Context, bundle string, c host.Cmd) error {
	logFile := filepath.Join(bundle, "runc.log")
	_ = os.Remove(logFile)
	verb := c.Args[0]
	c.Name = r.Path
	c.Args = append([]string{"--root", r.StateDir, "--log", logFile, "--log-format", "json"}, c.Args...)
	if _, err := r.Runner.Run(ctx, c); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if reason := lastError(logFile); reason != "" {
			return fmt.Errorf("runc %s: %w", verb, errors.New(reason))
		}
		return fmt.Errorf("runc %s: %w", verb, err)
	}
	return nil
}

func lastError(logFile string) string {
	data, err := os.ReadFile(logFile)
	if err != nil {
		return ""
	}
	reason := ""
	for line := range strings.Lines(string(data)) {
		var entry struct{ Level, Msg string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Level == "error" {
			reason = entry.Msg
		}
	}
	return reason
}

// WriteBundle writes the configuration where runc looks for it.
func WriteBundle(dir string, c Container) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	data, err := json.Marshal(Spec(c))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600)
}
