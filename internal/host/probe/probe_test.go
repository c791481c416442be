package probe

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zone/internal/host"
	"zone/internal/host/hosttest"
)

// machine makes a root with the given files and no programs.
func machine(t *testing.T, files map[string]string) Options {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Options{Root: root, Runner: hosttest.NewRunner(t), Look: lookFor()}
}

func lookFor(have ...string) func(string) (string, error) {
	return func(name string) (string, error) {
		for _, h := range have {
			if h == name {
				return "/bin/" + name, nil
			}
		}
		return "", errors.New("not found")
	}
}

func find(t *testing.T, name string) feature {
	t.Helper()
	for _, f := range features() {
		if f.name == name {
			return f
		}
	}
	t.Fatalf("no feature %q", name)
	return feature{}
}

const (
	v1Memory = "33 31 0:30 / /cg/memory rw - cgroup cgroup rw,memory\n34 31 0:31 / /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
	v1Named  = "35 31 0:35 / /cg/systemd rw - cgroup cgroup rw,name=systemd\n"
	v2       = "36 31 0:36 / /cg/unified rw - cgroup2 cgroup2 rw\n"
)

func TestChecks(t *testing.T) {
	for _, tt := range []struct {
		name, feature string
		files         map[string]string
		status        Status
		detail        string
	}{
		{"v1", "cgroup layout", map[string]string{"proc/self/mountinfo": v1Memory + v1Named}, Present, "v1"},
		{"hybrid", "cgroup layout", map[string]string{"proc/self/mountinfo": v1Memory + v2}, Present, "hybrid"},
		{"v2 with a named v1", "cgroup layout", map[string]string{"proc/self/mountinfo": v1Named + v2}, Present, "v2"},
		{"none", "cgroup layout", map[string]string{"proc/self/mountinfo": "\n - \nx - y\n"}, Missing, ""},
		{"joint v1", "controller cpu", map[string]string{"proc/self/mountinfo": v1Memory}, Present, ""},
		{"not there", "controller pids", map[string]string{"proc/self/mountinfo": v1Memory}, Missing, ""},
		{"on v2", "controller pids", map[string]string{"proc/self/mountinfo": v2, "cg/unified/cgroup.controllers": "cpu pids\n"}, Present, ""},
		{"v1 with", "swap accounting", map[string]string{"proc/self/mountinfo": v1Memory, "cg/memory/memory.memsw.limit_in_bytes": "1"}, Present, ""},
		{"v1 without", "swap accounting", map[string]string{"proc/self/mountinfo": v1Memory}, Missing, ""},
		{"v2 with", "swap accounting", map[string]string{"proc/self/mountinfo": v2, "cg/unified/init.scope/memory.swap.max": "max"}, Present, ""},
		{"v2 without", "swap accounting", map[string]string{"proc/self/mountinfo": v2}, Missing, ""},
		{"all", "CAP_SYS_ADMIN", map[string]string{"proc/self/status": "Name:\tx\nCapEff:\t000001ffffffffff\n"}, Present, ""},
		{"without", "CAP_SYS_RESOURCE", map[string]string{"proc/self/status": "CapEff:\t000001fffeffffff\n"}, Missing, ""},
		{"off", "delay accounting", map[string]string{"proc/sys/kernel/task_delayacct": "0\n"}, Partial, "0"},
		{"on", "delay accounting", map[string]string{"proc/sys/kernel/task_delayacct": "1\n"}, Present, "1"},
		{"unknown", "delay accounting", nil, Missing, "the kernel has no such setting"},
		{"btrfs says", "btrfs simple quotas", map[string]string{"proc/sys/kernel/osrelease": "6.6.1-lts", "sys/fs/btrfs/features/simple_quota": "0"}, Present, "kernel 6.6.1-lts"},
		{"by version", "btrfs simple quotas", map[string]string{"proc/sys/kernel/osrelease": "6.10.1"}, Present, "kernel 6.10.1"},
		{"old", "btrfs simple quotas", map[string]string{"proc/sys/kernel/osrelease": "6.1.0-13-amd64"}, Missing, "kernel 6.1.0-13-amd64"},
		{"module only", "ZFS", map[string]string{"sys/module/zfs/version": "2.3.1-1\n"}, Partial, "kernel module 2.3.1-1, no program zpool"},
		{"no program", "runc", nil, Missing, "no program runc"},
		{"no device", "KVM", map[string]string{"dev/kvm": ""}, Missing, "/dev/kvm is no KVM: inappropriate ioctl for device"},
	} {
		t.Run(tt.feature+" "+tt.name, func(t *testing.T) {
			c := find(t, tt.feature).check(t.Context(), machine(t, tt.files))
			if c.Status != tt.status || c.Detail != tt.detail {
				t.Errorf("%s %q, want %s %q", c.Status, c.Detail, tt.status, tt.detail)
			}
			if (c.Fix == "") != (c.Status == Present) {
				t.Errorf("status %s with fix %q", c.Status, c.Fix)
			}
		})
	}
}

func TestCrunOnHybrid(t *testing.T) {
	o := machine(t, map[string]string{"proc/self/mountinfo": v1Memory + v2})
	r := hosttest.NewRunner(t)
	r.Expect("crun version 1.8.1\ncommit: x\n", "/bin/crun", "--version")
	o.Runner, o.Look = r, lookFor("crun")
	status, detail := crun(t.Context(), o)
	if status != Partial || detail != "crun version 1.8.1: refuses hybrid cgroups; runc is used" {
		t.Errorf("%s %q", status, detail)
	}
}

func TestNftThatTheKernelRefuses(t *testing.T) {
	o := machine(t, nil)
	o.Look = lookFor("nft")
	o.Runner = hosttest.NewRunner(t, hosttest.Call{
		Argv: []string{"/bin/nft", "list", "tables"}, Result: host.Result{ExitCode: 1, Stderr: "Operation not supported"},
	})
	if status, detail := nft(t.Context(), o); status != Partial || !strings.Contains(detail, "not supported") {
		t.Errorf("%s %q", status, detail)
	}
}

// On a real machine: quick, complete, and nothing is left behind.
func TestRun(t *testing.T) {
	hosttest.Require(t, hosttest.Root)
	ours := func(e string) bool {
		return strings.HasPrefix(e, "br0") || strings.HasPrefix(e, "v0") || strings.HasPrefix(e, "v1")
	}
	before := hosttest.Snapshot(t).Only(ours)
	begin := time.Now()
	checks := Run(context.Background(), Options{Root: "/", Dir: t.TempDir(), Runner: host.Exec{}})
	took := time.Since(begin)
	for _, c := range checks {
		t.Logf("%-22s %-8s %s", c.Name, c.Status, c.Detail)
		if c.Name == "" || c.Needed == "" || (c.Status != Present && c.Fix == "") {
			t.Errorf("incomplete: %+v", c)
		}
	}
	if took > 5*time.Second { // below one on an idle machine
		t.Errorf("took %s", took)
	}
	t.Logf("took %s", took)
	if d := hosttest.Diff(before, hosttest.Snapshot(t).Only(ours)); d != "" {
		t.Error(d)
	}
}
