package packages

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
	"zone/internal/host"
)

const (
	policyPath = "/usr/sbin/policy-rc.d"
	// policyText forbids every action on services (101 is "by policy").
	policyText = "#!/bin/sh\n# put here by zone patch for the time of one run\nexit 101\n"
)

// aptOptions point apt at what the zones share. Our own lock (see Lock) stands
// for apt's.
func aptOptions() []string {
	return []string{
		"-q", "-y",
		"-o", "Dir::State::lists=" + aptLists,
		"-o", "Dir::Cache::pkgcache=",
		"-o", "Dir::Cache::archives=" + Shared + "/archives",
		"-o", "Acquire::Languages=none",
		"-o", "Debug::NoLocking=true",
		"-o", "APT::Get::AutomaticRemove=false",
	}
}

// solveOptions are those of every call that Solve and Apply make alike, so that
// both come to the same answer.
func solveOptions(z Zone, preferences string) ([]string, error) {
	args := append(aptOptions(), "-o", "Dir::Cache::srcpkgcache="+aptLists+"/"+aptIndex)
	if preferences == "" {
		return args, nil
	}
	if err := z.Root.MkdirAll(aptWork, 0o755); err != nil {
		return nil, err
	}
	file := aptWork + "/preferences"
	if err := z.Root.WriteFile(file, []byte(preferences), 0o644); err != nil {
		return nil, err
	}
	return append(args, "-o", "Dir::Etc::preferences="+file), nil
}

// Solve asks apt-get what an upgrade that removes nothing would do.
func (d Apt) Solve(ctx context.Context, z Zone, opt Options) (Plan, error) {
	state, err := d.State(z.Root)
	if err != nil {
		return Plan{}, fmt.Errorf("solve: %w", err)
	}
	if opt.SecurityOnly {
		other, err := notSecurity(ctx, z, opt.Exclude)
		if err != nil {
			return Plan{}, err
		}
		opt.Exclude = append(slices.Clone(opt.Exclude), other...)
	}
	prefs, err := preferences(z.Root, opt.Exclude)
	if err != nil {
		return Plan{}, fmt.Errorf("solve: %w", err)
	}
	args, err := solveArgs(z, prefs)
	if err != nil {
		return Plan{}, fmt.Errorf("solve: %w", err)
	}
	verb := []string{"--with-new-pkgs", "upgrade"}
	call := append(append(args, "-V", "--print-uris", "-o", "Acquire::ForceHash=SHA256"), verb...)
	res, err := z.Exec(ctx, aptCmd("apt-get", call...))
	if err != nil {
		logOutput(z, res)
		return Plan{}, fmt.Errorf("solve: %w", err)
	}
	p, err := parseAptPlan(res.Stdout)
	if err != nil {
		logOutput(z, res)
		return Plan{}, err
	}
	p.Verb, p.Preferences, p.State = verb, prefs, state
	return p, nil
}

// solveArgs are solveOptions for a call that only asks: all files are to be
// named, whether they lie in archives already or not.
func solveArgs(z Zone, prefs string) ([]string, error) {
	args, err := solveOptions(z, prefs)
	return append(args, "-o", "Dir::Cache::archives="+Shared+"/empty"), err
}

// notSecurity names the packages with an upgrade that does not come from a
// security archive. To hide those, rather than to install the others by name,
// keeps the marks of what was installed by hand.
func notSecurity(ctx context.Context, z Zone, exclude []string) ([]string, error) {
	prefs, err := preferences(z.Root, exclude)
	if err != nil {
		return nil, fmt.Errorf("find security updates: %w", err)
	}
	args, err := solveArgs(z, prefs)
	if err != nil {
		return nil, fmt.Errorf("find security updates: %w", err)
	}
	res, err := z.Exec(ctx, aptCmd("apt-get", append(args, "-s", "--with-new-pkgs", "upgrade")...))
	if err != nil {
		return nil, fmt.Errorf("find security updates: %w", err)
	}
	return aptNotSecurity(res.Stdout), nil
}

// preferences adds a pin that hides every version of the excluded packages to
// the zone's own pins. It is empty when nothing is excluded.
func preferences(root *host.Root, exclude []string) (string, error) {
	if len(exclude) == 0 {
		return "", nil
	}
	own, err := root.ReadFile(aptPrefs)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	pin := "Package: " + strings.Join(exclude, " ") + "\nPin: release *\nPin-Priority: -1\n"
	return pin + "\n" + string(own), nil
}

// Lock takes dpkg's frontend lock from outside the zone.
func (Apt) Lock(ctx context.Context, root *host.Root, wait time.Duration) (func(), error) {
	f, err := root.Open(aptFrontend, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return nil, fmt.Errorf("lock packages: %w", err)
	}
	deadline := time.Now().Add(wait)
	for {
		// An open-file-description lock: it goes when f is closed, whatever
		// else this process opens and closes.
		lk := unix.Flock_t{Type: unix.F_WRLCK}
		err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lk)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			_ = f.Close()
			return nil, fmt.Errorf("lock packages: %w", err)
		}
		if !time.Now().Before(deadline) {
			err := lockBusy(f, wait)
			_ = f.Close()
			return nil, err
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, ctx.Err()
		case <-time.After(min(200*time.Millisecond, max(time.Until(deadline), time.Millisecond))):
		}
	}
}

func lockBusy(f *os.File, wait time.Duration) error {
	who := "another program"
	lk := unix.Flock_t{Type: unix.F_WRLCK}
	if unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lk) == nil && lk.Pid > 0 {
		who = fmt.Sprintf("process %d", lk.Pid)
	}
	return errdefs.New(errdefs.Busy, "lock packages",
		"%s in the zone holds the package database (%s), waited %s", who, aptFrontend, wait)
}

// Apply runs the plan's verb without the network. What apt-get itself says of
// its success is not enough: call Verify.
func (Apt) Apply(ctx context.Context, z Zone, p Plan, quiet bool) error {
	args, err := solveOptions(z, p.Preferences)
	if err != nil {
		return err
	}
	if quiet {
		remove, err := forbidServices(z.Root)
		if err != nil {
			return err
		}
		defer remove()
	}
	args = append(args, "--no-download", "--no-remove",
		"-o", "APT::Keep-Downloaded-Packages=true",
		"-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold",
		// A daemon that a package starts and that keeps its output open would
		// keep the call from ending. On a terminal of apt's own it cannot.
		"-o", "Dpkg::Use-Pty=1")
	c := aptCmd("apt-get", append(args, p.Verb...)...)
	c.Env = append(c.Env, "DPKG_FRONTEND_LOCKED=true", "APT_LISTCHANGES_FRONTEND=none")
	said := &tail{}
	to := io.Writer(said)
	if z.Log != nil {
		to = io.MultiWriter(z.Log, said)
	}
	out, errs := &terminalLines{to: to}, &terminalLines{to: to}
	c.Stdout, c.Stderr = out, errs
	_, err = z.Exec(ctx, c)
	out.end()
	errs.end()
	if err != nil {
		if why := aptComplaint(said.String()); why != "" && ctx.Err() == nil && exited(err) {
			return fmt.Errorf("upgrade packages: %s", why)
		}
		return fmt.Errorf("upgrade packages: %w", err)
	}
	return nil
}

// exited tells a program that failed by itself from one that was ended.
func exited(err error) bool {
	var e *host.CommandError
	return errors.As(err, &e) && e.ExitCode > 0
}

// terminalLines passes on whole lines as a terminal would show them at last: of
// progress that is written over itself only the end.
type terminalLines struct {
	to  io.Writer
	buf []byte // the line that has not ended
}

// Write never fails: what is said must not stop who says it.
func (l *terminalLines) Write(p []byte) (int, error) {
	l.buf = append(l.buf, p...)
	for {
		line, rest, ended := bytes.Cut(l.buf, []byte("\n"))
		if !ended && len(l.buf) < tailSize {
			return len(p), nil
		}
		l.put(line)
		l.buf = rest
	}
}

func (l *terminalLines) put(line []byte) {
	line = bytes.TrimRight(line, "\r")
	_, _ = fmt.Fprintf(l.to, "%s\n", line[bytes.LastIndexByte(line, '\r')+1:])
}

// end passes on a last line that has no end.
func (l *terminalLines) end() {
	if len(l.buf) > 0 {
		l.put(l.buf)
		l.buf = nil
	}
}

// tail keeps the end of what is written to it. Safe for several goroutines:
// output and errors of a program come at once.
type tail struct {
	mu  sync.Mutex // guards buf
	buf []byte
}

const tailSize = 64 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - tailSize; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}

// forbidServices puts our policy in place unless the zone has its own, which
// then decides, and returns what takes it away.
func forbidServices(root *host.Root) (func(), error) {
	if data, err := root.ReadFile(policyPath); err == nil && string(data) != policyText {
		return func() {}, nil
	}
	if err := root.WriteFile(policyPath, []byte(policyText), 0o755); err != nil {
		return nil, fmt.Errorf("keep services from starting: %w", err)
	}
	return func() { _ = root.Remove(policyPath) }, nil
}

// Verify reads dpkg's database back.
func (Apt) Verify(ctx context.Context, z Zone, p Plan) error {
	if err := audit(ctx, z, "the package database is broken after the upgrade"); err != nil {
		return err
	}
	res, err := z.Exec(ctx, aptCmd("dpkg-query", "-W", "-f",
		`${Package}\t${Architecture}\t${Version}\t${db:Status-Abbrev}\n`))
	if err != nil {
		return fmt.Errorf("read installed versions: %w", err)
	}
	if bad := unplanned(p, dpkgVersions(res.Stdout)); len(bad) > 0 {
		return fmt.Errorf("verify packages: %s", strings.Join(bad, "; "))
	}
	if data, err := z.Root.ReadFile(policyPath); err == nil && string(data) == policyText {
		return fmt.Errorf("verify packages: %s could not be removed", policyPath)
	}
	return nil
}
