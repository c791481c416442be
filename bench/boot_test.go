// Package bench measures what zone adds to the programs below it. Run it by
// `make bench`; it prints and asserts nothing, since times depend on who else
// uses the machine.
package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zone/test/machine"
)

func TestMain(m *testing.M) { os.Exit(machine.Main(m)) }

// BenchmarkBoot takes turns between `zone boot` and what an engine alone needs
// for the same root: an overlay mounted by hand, runc create, runc start. Both
// are reported as medians, with the difference, which is what zone adds:
// locks, journal, network, limits read back.
func BenchmarkBoot(b *testing.B) {
	m := machine.New(b)
	m.BaseImage()
	m.Must("create", "z")
	m.Must("create", "limited", "--set", "capped-cpu=1", "--set", "capped-memory=512M", "--set", "max-lwps=500")
	m.Must("create", "unlinked", "--set", "net.ip-type=none")
	p := newPlain(b, m)
	boot := func(zone string) time.Duration {
		r := m.Try("boot", zone)
		if r.Code != 0 {
			b.Fatal(r.Stderr)
		}
		m.Must("halt", zone)
		return r.Took
	}
	series := map[string][]time.Duration{}
	for b.Loop() {
		series["plain"] = append(series["plain"], p.run(b))
		for _, zone := range []string{"z", "limited", "unlinked"} {
			series[zone] = append(series[zone], boot(zone))
		}
	}
	environment(b)
	plain := median(series["plain"])
	b.ReportMetric(0, "ns/op") // all series together: means nothing
	b.ReportMetric(millis(plain), "plain-ms")
	for name, zone := range map[string]string{"boot": "z", "boot-limited": "limited", "boot-unlinked": "unlinked"} {
		d := median(series[zone])
		b.ReportMetric(millis(d), name+"-ms")
		b.ReportMetric(millis(d-plain), name+"-added-ms")
		b.Logf("%-13s median %6.1f ms, quartiles %6.1f and %6.1f, added %6.1f ms", name, millis(d),
			millis(quantile(series[zone], 0.25)), millis(quantile(series[zone], 0.75)), millis(d-plain))
	}
	b.Logf("%-13s median %6.1f ms, quartiles %6.1f and %6.1f, %d turns", "plain runc", millis(plain),
		millis(quantile(series["plain"], 0.25)), millis(quantile(series["plain"], 0.75)), len(series["plain"]))
}

// plain is the same root and the same container without zone.
type plain struct {
	pins                 *os.File
	state, bundle, image string
	upper, work, root    string
	n                    int
}

// newPlain takes the engine's configuration from a zone that runs, so that
// both have the same mounts, namespaces and rights.
func newPlain(b *testing.B, m *machine.Machine) *plain {
	dir := filepath.Dir(m.Home)
	p := &plain{
		state: filepath.Join(dir, "plain-state"), bundle: filepath.Join(dir, "plain"), root: filepath.Join(dir, "plain", "root"),
		image: filepath.Join(m.PoolPath("tank", "images"), "base@1", "root"),
		upper: m.PoolPath("tank", "tmp/plain/upper"), work: m.PoolPath("tank", "tmp/plain/work"),
	}
	m.Must("boot", "z")
	config, err := os.ReadFile(filepath.Join(m.Run, "zones", "z", "bundle", "config.json"))
	if err == nil {
		err = os.MkdirAll(p.root, 0o700)
	}
	if err != nil {
		b.Fatal(err)
	}
	m.Must("halt", "z")
	var spec map[string]any
	if err := json.Unmarshal(config, &spec); err != nil {
		b.Fatal(err)
	}
	spec["root"] = map[string]any{"path": p.root}
	group := filepath.Base(filepath.Dir(spec["linux"].(map[string]any)["cgroupsPath"].(string)))
	spec["linux"].(map[string]any)["cgroupsPath"] = "/" + group + "/plain"
	for _, ns := range spec["linux"].(map[string]any)["namespaces"].([]any) {
		delete(ns.(map[string]any), "path") // the zone's network is gone: a new one
	}
	if config, err = json.Marshal(spec); err == nil {
		err = os.WriteFile(filepath.Join(p.bundle, "config.json"), config, 0o600)
	}
	if err == nil {
		p.pins, err = os.Open(filepath.Join(m.Run, "ns", "mnt"))
	}
	if err != nil {
		b.Fatal(err)
	}
	m.Inside("mkdir", "-p", p.upper, p.work)
	b.Cleanup(func() {
		_ = p.pins.Close()
		m.Inside("rm", "-rf", filepath.Dir(p.upper))
		groups, _ := filepath.Glob("/sys/fs/cgroup/*/" + group)
		for _, g := range groups {
			_ = os.Remove(g)
		}
	})
	return p
}

// run boots once and returns how long mount, create and start took.
func (p *plain) run(b *testing.B) time.Duration {
	p.n++
	id := fmt.Sprintf("plain%d", p.n)
	took := make(chan time.Duration)
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread is not used again
		failed <- p.inMounts(func() error {
			began := time.Now()
			if err := p.boot(id); err != nil {
				return err
			}
			took <- time.Since(began)
			return p.runc("delete", "--force", id)
		})
	}()
	select {
	case err := <-failed:
		b.Fatal(err)
	case d := <-took:
		if err := <-failed; err != nil {
			b.Fatal(err)
		}
		return d
	}
	return 0
}

// inMounts runs f on this thread, in a copy of the mounts that the pools are in.
func (p *plain) inMounts(f func() error) error {
	own, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/mnt", unix.Gettid()))
	if err != nil {
		return err
	}
	defer own.Close()
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	// The first thread of a program never ends, so it must not stay there.
	defer func() { _ = unix.Setns(int(own.Fd()), unix.CLONE_NEWNS) }()
	if err := unix.Setns(int(p.pins.Fd()), unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return err
	}
	return f()
}

func (p *plain) boot(id string) error {
	options := "lowerdir=" + p.image + ",upperdir=" + p.upper + ",workdir=" + p.work
	if err := unix.Mount("plain", p.root, "overlay", unix.MS_NODEV|unix.MS_NOATIME, options); err != nil {
		return fmt.Errorf("overlay: %w", err)
	}
	if err := p.runc("create", "--bundle", p.bundle, id); err != nil {
		return err
	}
	return p.runc("start", id)
}

func (p *plain) runc(args ...string) error {
	c := exec.Command("runc", append([]string{"--root", p.state}, args...)...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.Run(); err != nil { // no pipes: the container would keep them open
		return fmt.Errorf("runc %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// environment says what the numbers were measured on.
func environment(b *testing.B) {
	var u unix.Utsname
	_ = unix.Uname(&u)
	version, _ := exec.Command("runc", "--version").Output()
	first, _, _ := strings.Cut(string(version), "\n")
	load, _ := os.ReadFile("/proc/loadavg")
	b.Logf("kernel %s, %s, %d CPUs, load %s", unix.ByteSliceToString(u.Release[:]), first, runtime.NumCPU(), strings.TrimSpace(string(load)))
}

func median(d []time.Duration) time.Duration { return quantile(d, 0.5) }

func quantile(d []time.Duration, q float64) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[int(q*float64(len(s)-1))]
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
