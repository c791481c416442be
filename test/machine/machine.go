// Package machine gives a test a whole installation of zone of its own on this
// machine: a home and a run directory in a temporary place, the built program,
// and the promise that nothing of it is left when the test ends. The program
// is called as users call it, by its command line; only tests import this
// package. A Machine is used from one goroutine, except for Run and Command.
package machine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zone/internal/host/hosttest"
)

// commandPatience bounds one command: nothing that tests do takes as long.
const commandPatience = 3 * time.Minute

// Machine is one installation. Home and Run are its $ZONE_HOME and $ZONE_RUN.
type Machine struct {
	Home, Run string

	t      testing.TB
	binary string
	tag    string // tells what is this installation's in names on the host
	uuids  map[string]bool
	before hosttest.HostState
}

// New makes an installation that is removed, and looked for in every corner of
// the machine, when the test ends. The test is skipped where the machine lacks
// what zones need, or any of the further needs.
func New(t testing.TB, needs ...hosttest.Need) *Machine {
	t.Helper()
	basic := []hosttest.Need{
		hosttest.Root, hosttest.Btrfs, hosttest.Loop, hosttest.Overlay, hosttest.Runc, hosttest.Network,
		hosttest.Tool("nft"), hosttest.Tool("nsenter"),
	}
	hosttest.Require(t, append(basic, needs...)...)
	m := &Machine{t: t, binary: Binary(t), uuids: map[string]bool{}}
	dir := claim(t)
	m.Home, m.Run = filepath.Join(dir, "home"), filepath.Join(dir, "run")
	m.tag = tagOf(m.Home)
	m.before = hosttest.Snapshot(t)
	t.Cleanup(m.leave)
	return m
}

// On returns the same installation for the use of a subtest.
func (m *Machine) On(t testing.TB) *Machine {
	sub := *m
	sub.t = t
	return &sub
}

// Result is what a command printed and how it ended; Code is -1 when a signal
// ended it.
type Result struct {
	Stdout, Stderr string
	Code           int
	Took           time.Duration
}

// Command returns `zone args...` for this installation, not yet started.
func (m *Machine) Command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, m.binary, args...)
	c.Env = append(os.Environ(), "ZONE_HOME="+m.Home, "ZONE_RUN="+m.Run, "NO_COLOR=1")
	c.WaitDelay = 2 * time.Second
	return c
}

// Try runs `zone args...`, however it may end.
func (m *Machine) Try(args ...string) Result {
	m.t.Helper()
	return m.TryInput("", args...)
}

// TryInput is Try with something to read.
func (m *Machine) TryInput(stdin string, args ...string) Result {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandPatience)
	defer cancel()
	c := m.Command(ctx, args...)
	c.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	began := time.Now()
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		m.t.Errorf("zone %s: %v", strings.Join(args, " "), err)
	}
	if ctx.Err() != nil {
		m.t.Errorf("zone %s: no end after %s", strings.Join(args, " "), commandPatience)
	}
	return Result{out.String(), errs.String(), c.ProcessState.ExitCode(), time.Since(began)}
}

// Must runs a command that has to succeed and returns what it printed.
func (m *Machine) Must(args ...string) string {
	m.t.Helper()
	r := m.Try(args...)
	if r.Code != 0 {
		m.t.Fatalf("zone %s: exit code %d\n%s%s", strings.Join(args, " "), r.Code, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// Refused runs a command that has to end with the exit code, having said every
// one of the words on standard error and nothing on standard output.
func (m *Machine) Refused(code int, words []string, args ...string) {
	m.t.Helper()
	r := m.Try(args...)
	if r.Code != code {
		m.t.Errorf("zone %s: exit code %d, want %d\n%s", strings.Join(args, " "), r.Code, code, r.Stderr)
	}
	for _, w := range words {
		if !strings.Contains(r.Stderr, w) {
			m.t.Errorf("zone %s does not say %q:\n%s", strings.Join(args, " "), w, r.Stderr)
		}
	}
	if r.Stdout != "" {
		m.t.Errorf("zone %s prints as answer: %q", strings.Join(args, " "), r.Stdout)
	}
}

// Exec runs a shell line in a zone, which has to succeed, and returns what it
// printed without the last newline.
func (m *Machine) Exec(zone, script string) string {
	m.t.Helper()
	return strings.TrimSuffix(m.Must("exec", zone, "--", "sh", "-c", script), "\n")
}

// Zone is a line of `zone list --json`.
type Zone struct {
	Name, State, Why, Pool, Root, Image, Address, UUID string
	PID, Layers                                        int
}

// Zones returns all zones, by name.
func (m *Machine) Zones() map[string]Zone {
	m.t.Helper()
	var list struct{ Zones []Zone }
	if out := m.Must("list", "-c", "--json"); json.Unmarshal([]byte(out), &list) != nil {
		m.t.Fatalf("zone list --json printed %q", out)
	}
	zones := map[string]Zone{}
	for _, z := range list.Zones {
		zones[z.Name] = z
		m.uuids[z.UUID] = true
	}
	return zones
}

// Names returns the names of all zones, sorted.
func (m *Machine) Names() []string {
	m.t.Helper()
	names := strings.Fields(m.Must("list", "-c", "-q"))
	slices.Sort(names)
	return names
}

// Expect checks that a zone is in a state.
func (m *Machine) Expect(zone, state string) Zone {
	m.t.Helper()
	z, ok := m.Zones()[zone]
	if !ok || z.State != state {
		m.t.Errorf("zone %s is %q (%s), want %s", zone, z.State, z.Why, state)
	}
	return z
}

// Inside runs a program of the host where the pools of the installation can be
// seen, and returns its standard output.
func (m *Machine) Inside(args ...string) string {
	m.t.Helper()
	c := exec.Command("nsenter", append([]string{"--mount=" + m.pin(), "--"}, args...)...)
	var errs bytes.Buffer
	c.Stderr = &errs
	out, err := c.Output()
	if err != nil {
		m.t.Fatalf("inside: %s: %v: %s", strings.Join(args, " "), err, errs.String())
	}
	return string(out)
}

// Pool is a line of `zone pool list --json`.
type Pool struct {
	Name, Path, File string
	Used, Free       int64
}

// Pool returns what the program says of a pool.
func (m *Machine) Pool(name string) Pool {
	m.t.Helper()
	var list struct{ Pools []Pool }
	out := m.Must("pool", "list", "--json")
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		m.t.Fatalf("zone pool list --json printed %q", out)
	}
	for _, p := range list.Pools {
		if p.Name == name {
			return p
		}
	}
	m.t.Fatalf("no pool %s in %s", name, out)
	return Pool{}
}

// PoolPath returns where Inside finds a directory of a pool.
func (m *Machine) PoolPath(pool, leaf string) string {
	m.t.Helper()
	return filepath.Join(m.Pool(pool).Path, leaf)
}

func (m *Machine) pin() string { return filepath.Join(m.Run, "ns", "mnt") }
