package system

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"zone/internal/host/hosttest"
	"zone/test/machine"
)

// What 50 clones of a whole Debian in one command may cost. Time depends on
// who else uses the machine, so the test fails at four times the aim only;
// space does not.
const (
	clones          = 50
	sparseCloneTime = 5 * time.Millisecond
	wholeCloneTime  = 20 * time.Millisecond
	timeSlack       = 4
	cloneSpace      = 200_000 // bytes
)

func TestCloneCost(t *testing.T) {
	m := machine.New(t)
	m.BaseImage()
	for root, aim := range map[string]time.Duration{"sparse": sparseCloneTime, "whole": wholeCloneTime} {
		t.Run(root, func(t *testing.T) {
			m := m.On(t)
			m.Must("create", "src", "--set", "root="+root)
			m.Must("boot", "src") // a clone of a zone that runs and has files of its own
			m.Exec("src", "head -c 3000000 /dev/urandom >/root/own; sync")
			before := poolUsed(t, m)
			r := m.Try("clone", "src", "c", "--count", fmt.Sprint(clones))
			if r.Code != 0 {
				t.Fatal(r.Stderr)
			}
			grown := (poolUsed(t, m) - before) / clones
			each := r.Took / clones
			t.Logf("%d clones in %s: %s each (aim %s), %d bytes each (bound %d)",
				clones, r.Took.Round(time.Millisecond), each.Round(10*time.Microsecond), aim, grown, cloneSpace)
			if each > timeSlack*aim {
				t.Errorf("a clone takes %s", each)
			}
			if grown > cloneSpace {
				t.Errorf("a clone takes %d bytes", grown)
			}
			names := m.Names()
			if len(names) != clones+1 || names[0] != "c-001" || names[clones-1] != "c-050" {
				t.Errorf("zones: %v", names)
			}
			m.Must("boot", "c-037")
			if got := m.Exec("c-037", "wc -c </root/own; dpkg --audit; hostname"); got != "3000000\nc-037" {
				t.Errorf("in a clone: %q", got)
			}
			m.Clear()
		})
	}
}

// poolUsed returns the bytes in use, when all that was written is on disk.
func poolUsed(t *testing.T, m *machine.Machine) int64 {
	t.Helper()
	m.Inside("sync", "-f", m.PoolPath("tank", ""))
	return m.Pool("tank").Used
}

const bigFile = 256 << 20

// 16 zones that read one file of their base hold it in memory once.
func TestPageCacheShared(t *testing.T) {
	m := machine.New(t, hosttest.Tool("fincore"))
	m.BaseImage()
	m.Must("create", "src")
	m.Must("boot", "src")
	m.Exec("src", fmt.Sprintf("head -c %d /dev/urandom >/root/big; sync", bigFile))
	m.Must("halt", "src")
	m.Must("clone", "src", "z", "--count", "16")
	m.Must("delete", "src", "-F")
	m.Must("boot", "--all")

	file := strings.TrimSpace(m.Inside("sh", "-c", "echo "+m.PoolPath("tank", "layers/*/upper/root/big")))
	m.Inside("dd", "if="+file, "iflag=nocache", "count=0", "status=none") // forgets what is in memory
	if n := resident(t, m, file); n > bigFile/10 {
		t.Fatalf("%d bytes of the file stay in memory before anybody reads it", n)
	}
	before := cached(t, m)
	var g errgroup.Group
	for _, z := range m.Names() {
		g.Go(func() error {
			out, err := m.Command(t.Context(), "exec", z, "--", "cksum", "/root/big").CombinedOutput()
			if err == nil && !strings.HasSuffix(string(out), fmt.Sprintf(" %d /root/big\n", bigFile)) {
				err = fmt.Errorf("read in %s: %s", z, out)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	grown := cached(t, m) - before
	t.Logf("16 zones that read %d bytes: page cache charged to them %d, the file's pages in memory %d", bigFile, grown, resident(t, m, file))
	if n := resident(t, m, file); n < bigFile*9/10 {
		t.Errorf("only %d bytes of the file are in memory: the measurement is void", n)
	}
	if grown < bigFile*9/10 || grown > bigFile*13/10 {
		t.Errorf("16 zones hold %d bytes of page cache for a file of %d", grown, bigFile)
	}
	// Nor may the pool's own file hold it a second time.
	if n := resident(t, m, m.Pool("tank").File); n > bigFile/10 {
		t.Errorf("%d bytes of the pool's file are in memory", n)
	}
}

// resident returns how many bytes of a file are in memory.
func resident(t *testing.T, m *machine.Machine, file string) int64 {
	t.Helper()
	return number(t, m.Inside("fincore", "-b", "-n", "-o", "RES", file))
}

// cached returns the bytes of page cache that all zones are charged for.
func cached(t *testing.T, m *machine.Machine) (sum int64) {
	t.Helper()
	for _, z := range m.Zones() {
		if z.PID == 0 {
			continue
		}
		text := groupFile(t, z.PID, "memory", "memory.stat", "memory.stat")
		key := "file"
		if strings.Contains(text, "total_cache") {
			key = "total_cache"
		}
		sum += keyed(t, text, key)
	}
	return sum
}

// A process that took a copy of the host's mounts, as any container engine
// does, keeps no pool from being destroyed.
func TestForeignMountNamespace(t *testing.T) {
	m := machine.New(t, hosttest.Tool("unshare"))
	m.BaseImage()
	m.Must("create", "a")
	m.Must("boot", "a")
	sleeper := exec.Command("unshare", "-m", "sleep", "300")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = sleeper.Process.Kill(), sleeper.Wait() }()
	until(t, 5*time.Second, "a copy of the mounts", func() bool {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", sleeper.Process.Pid))
		return strings.TrimSpace(string(comm)) == "sleep"
	})
	m.Must("halt", "a")
	m.Must("pool", "destroy", "tank", "-F")
	if out := m.Must("pool", "list", "-q"); out != "" {
		t.Errorf("pools after destroy: %q", out)
	}
}
