package zone

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"zone/internal/cgroup"
	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/runtime"
)

// addProperties describes what a zone is given beside its root, network and
// cgroup limits, or refuses what this host cannot give.
func (s *Service) addProperties(name string, z config.Zone, c *runtime.Container) error {
	err := s.refuseProperties("start", name, z)
	if err != nil {
		return err
	}
	c.Capabilities, c.Locked, c.Sysctl = z.Capabilities(), int64(z.CappedMemory.Locked), ipcSettings(z)
	if c.Devices, err = findDevices(name, z.Device); err != nil || z.HostID == "" {
		return err
	}
	id, err := strconv.ParseUint(z.HostID, 16, 32)
	if err != nil {
		return err
	}
	file := filepath.Join(s.runDir(name), "hostid")
	// The C library reads the number as the processor keeps it.
	if err := host.WriteFile(file, binary.NativeEndian.AppendUint32(nil, uint32(id)), 0o644, false); err != nil {
		return err
	}
	c.Mounts = append(c.Mounts, runtime.Bind{Source: file, Destination: "/etc/hostid"})
	return nil
}

// refuseProperties refuses what this host cannot give.
func (s *Service) refuseProperties(op, name string, z config.Zone) error {
	what := op + " " + name
	if z.CappedMemory.OOM == config.OOMZone && s.Cgroups.Layout != cgroup.LayoutV2 {
		return errdefs.New(errdefs.NotSupported, what,
			"capped-memory.oom=zone needs cgroup v2, whose kernel ends all processes of a group; the layout of this host is %s", s.Cgroups.Layout).
			WithHint("zone doctor")
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return err
	}
	if uint64(z.CappedMemory.Locked) > limit.Max {
		return errdefs.New(errdefs.NotSupported, what, "capped-memory.locked is %s and the host lets a process lock at most %s",
			z.CappedMemory.Locked, config.Size(limit.Max)).WithHint("ulimit -H -l, or LimitMEMLOCK= of the unit that calls zone, raises it")
	}
	for _, f := range z.FS {
		fd, err := s.openSpecial(name, f)
		if err != nil {
			return err
		}
		closeFd(fd)
	}
	_, err := findDevices(name, z.Device)
	return err
}

// ipcSettings returns what limits System V objects in a zone's own namespace.
func ipcSettings(z config.Zone) map[string]string {
	m := map[string]string{}
	if n := int64(z.MaxShmMemory); n > 0 {
		m["kernel.shmmax"] = fmt.Sprint(n)
		m["kernel.shmall"] = fmt.Sprint(n / int64(os.Getpagesize()))
	}
	if z.MaxShmIDs > 0 {
		m["kernel.shmmni"] = fmt.Sprint(z.MaxShmIDs)
	}
	if z.MaxMsgIDs > 0 {
		m["kernel.msgmni"] = fmt.Sprint(z.MaxMsgIDs)
	}
	if z.MaxSemIDs > 0 {
		// Semaphores in a set, in all, and operations in a call stay what the
		// kernel gives a new namespace.
		m["kernel.sem"] = fmt.Sprintf("32000 1024000000 500 %d", z.MaxSemIDs)
	}
	if len(m) == 0 {
		return nil
	}
	return m
}

// checkProperties reads back from the zone's first process what addProperties
// asked for.
func (s *Service) checkProperties(name string, pid int, z config.Zone) error {
	var bad []string
	if want := int64(z.CappedMemory.Locked); want > 0 {
		var held unix.Rlimit
		if err := unix.Prlimit(pid, unix.RLIMIT_MEMLOCK, nil, &held); err != nil {
			return err
		}
		if held.Max != uint64(want) || held.Cur != uint64(want) {
			bad = append(bad, fmt.Sprintf("capped-memory.locked: asked %d, holds %d", want, held.Max))
		}
	}
	settings := ipcSettings(z)
	if len(settings) > 0 {
		err := host.WithIPCNamespace(pid, func() error {
			for key, want := range settings {
				b, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(key, ".", "/"))
				if err != nil {
					return err
				}
				if got := strings.Join(strings.Fields(string(b)), " "); got != want {
					bad = append(bad, fmt.Sprintf("%s: asked %s, holds %s", key, want, got))
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if z.CappedMemory.OOM == config.OOMZone {
		if on, err := s.group(name).KillsAll(); err != nil || !on {
			bad = append(bad, fmt.Sprintf("capped-memory.oom: asked %s, holds %s", config.OOMZone, config.OOMProcess))
		}
	}
	missing, err := missingDevices(name, pid, z.Device)
	if err != nil {
		return err
	}
	if bad = append(bad, missing...); len(bad) == 0 {
		return nil
	}
	return errdefs.New(errdefs.NotSupported, "limits of "+name, "the kernel did not take %s", strings.Join(bad, "; ")).WithHint("zone doctor")
}
