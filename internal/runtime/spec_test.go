package runtime

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"zone/internal/host"
)

var update = flag.Bool("update", false, "write the golden files anew")

func plain() Container {
	return Container{
		Root: "/run/zone/zones/web1/root", Hostname: "web1", Args: []string{"/sbin/init"},
		Env: []string{"PATH=/bin", "container=zone"}, CgroupPath: "/zone/web1",
	}
}

// golden compares with a file in testdata, or writes it.
func golden(t *testing.T, name string, v any) {
	t.Helper()
	got, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", name+".json")
	if *update {
		if err := os.WriteFile(file, append(got, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)+"\n"); diff != "" {
		t.Error(diff)
	}
}

func TestSpecPlain(t *testing.T) { golden(t, "plain", Spec(plain())) }

func TestSpecFull(t *testing.T) {
	c := plain()
	c.Limits = Limits{CPUs: 1.5, Weight: 200, Memory: 1 << 30, Swap: 1 << 20, Pids: 500}
	c.Mounts = []Bind{
		{Source: "/pool/shared/zones/web1", Destination: "/run/host/zone"},
		{Source: "/sys/fs/cgroup/systemd/zone/web1", Destination: "/sys/fs/cgroup/systemd", Writable: true},
	}
	c.Mounts = append(c.Mounts, Bind{Source: "/data", Destination: "/srv", Recursive: true},
		Bind{Source: "/work", Destination: "/mnt", Recursive: true, Writable: true})
	c.Devices = []Device{{Path: "/dev/net/tun", Major: 10, Minor: 200, Mode: 0o660, GID: 5}, {Path: "/dev/vdb", Block: true, Major: 254, Minor: 16}}
	c.QuietSync, c.OwnCgroups = true, true
	c.Capabilities, c.Locked = []string{"CAP_CHOWN", "CAP_KILL"}, 1<<20
	c.Sysctl = map[string]string{"kernel.shmmni": "5"}
	golden(t, "full", Spec(c))
}

// Resources alone, where the kinds of limits differ.
func TestSpecResources(t *testing.T) {
	type resources struct {
		CPU     *specs.LinuxCPU    `json:"cpu,omitempty"`
		Memory  *specs.LinuxMemory `json:"memory,omitempty"`
		Pids    *specs.LinuxPids   `json:"pids,omitempty"`
		Unified map[string]string  `json:"unified,omitempty"`
	}
	all := map[string]resources{}
	for name, c := range map[string]struct {
		limits Limits
		v2     bool
	}{
		"none":                      {Limits{}, false},
		"cpu":                       {Limits{CPUs: 0.01}, false},
		"cpu of a third":            {Limits{CPUs: 1.0 / 3}, false},
		"weight v1":                 {Limits{Weight: 100}, false},
		"weight v2":                 {Limits{Weight: 100}, true},
		"least weight v1":           {Limits{Weight: 1}, false},
		"most weight v1":            {Limits{Weight: 10000}, false},
		"weight and cpu v2":         {Limits{Weight: 7, CPUs: 2}, true},
		"memory":                    {Limits{Memory: 1 << 30}, false},
		"memory and swap":           {Limits{Memory: 1 << 30, Swap: 1 << 20}, false},
		"memory and no swap":        {Limits{Memory: 1 << 30, Swap: -1}, true},
		"swap says nothing alone":   {Limits{Swap: 1 << 20}, false},
		"more memory than 32 bits":  {Limits{Memory: 1 << 42}, false},
		"all killed together v2":    {Limits{Memory: 1 << 20, Weight: 7, KillAll: true}, true},
		"processes":                 {Limits{Pids: 1}, false},
		"everything on cgroup v2":   {Limits{CPUs: 1, Weight: 50, Memory: 1 << 20, Swap: -1, Pids: 9}, true},
		"everything on v1 and more": {Limits{CPUs: 64, Weight: 50, Memory: 1 << 20, Swap: 1, Pids: 9}, false},
	} {
		s := plain()
		s.Limits, s.UnifiedCgroups = c.limits, c.v2
		r := Spec(s).Linux.Resources
		all[name] = resources{r.CPU, r.Memory, r.Pids, r.Unified}
	}
	golden(t, "resources", all)
}

func TestShares(t *testing.T) {
	for weight, want := range map[int]uint64{0: 2, 1: 10, 50: 512, 100: 1024, 200: 2048, 10000: 102400} {
		if got := Shares(weight); got != want {
			t.Errorf("%d: %d, want %d", weight, got, want)
		}
	}
}

// What a zone may never get, whatever else changes.
func TestSpecHoldsZonesIn(t *testing.T) {
	c := plain()
	c.OwnCgroups, c.QuietSync = true, true
	s := Spec(c)
	for _, set := range [][]string{
		s.Process.Capabilities.Bounding, s.Process.Capabilities.Effective, s.Process.Capabilities.Permitted,
		s.Process.Capabilities.Inheritable, s.Process.Capabilities.Ambient,
	} {
		for _, never := range []string{
			"CAP_SYS_ADMIN", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_TIME", "CAP_BPF", "CAP_PERFMON", "CAP_MAC_ADMIN",
			"CAP_SYSLOG", "CAP_SYS_RESOURCE", "CAP_SYS_NICE", "CAP_LINUX_IMMUTABLE", "CAP_CHECKPOINT_RESTORE", "CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND",
		} {
			if slices.Contains(set, never) {
				t.Errorf("grants %s", never)
			}
		}
	}
	for _, quiet := range []bool{false, true} {
		c.QuietSync = quiet
		refused := []string{}
		for _, rule := range Spec(c).Linux.Seccomp.Syscalls {
			if rule.Action == specs.ActErrno && rule.ErrnoRet != nil && *rule.ErrnoRet != 0 && len(rule.Args) == 0 {
				refused = append(refused, rule.Names...)
			}
		}
		for _, call := range []string{"open_by_handle_at", "bpf", "init_module", "finit_module", "delete_module", "kexec_load"} {
			if !slices.Contains(refused, call) {
				t.Errorf("quiet %v: lets %s through", quiet, call)
			}
		}
	}
	first := s.Linux.Resources.Devices[0]
	if first.Allow || first.Access != "rwm" || first.Type != "" || first.Major != nil {
		t.Errorf("not all devices are refused first: %+v", first)
	}
	for _, d := range s.Linux.Resources.Devices[1:] {
		if d.Type != "c" || d.Major == nil || d.Minor == nil || *d.Major < 1 {
			t.Errorf("too wide: %+v", d)
		}
	}
	kinds := map[specs.LinuxNamespaceType]string{}
	for _, n := range s.Linux.Namespaces {
		kinds[n.Type] = n.Path
	}
	for _, n := range []specs.LinuxNamespaceType{"pid", "network", "ipc", "uts", "mount", "cgroup"} {
		if path, ok := kinds[n]; !ok || path != "" {
			t.Errorf("no %s namespace of its own", n)
		}
	}
	for _, m := range s.Mounts {
		if m.Destination != "/dev" && !slices.Contains(m.Options, "nodev") && m.Type != "devpts" {
			t.Errorf("%s takes devices", m.Destination)
		}
	}
}

func TestWriteBundle(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a/bundle")
	if err := WriteBundle(dir, plain()); err != nil {
		t.Fatal(err)
	}
	var got specs.Spec
	if err := host.ReadJSON(filepath.Join(dir, "config.json"), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Spec(plain()), &got); diff != "" {
		t.Error(diff)
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, "config.json"): 0o600} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, st.Mode(), err)
		}
	}
}
