package zone

import (
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"zone/internal/host"
)

// initKind says what a zone's first process understands.
type initKind string

const (
	initSystemd initKind = "systemd"
	initSysV    initKind = "sysv"    // sysvinit and its like: told by /sbin/shutdown
	initBusybox initKind = "busybox" // busybox init with openrc: told by /sbin/poweroff
	initNone    initKind = "none"    // the image has none: a small reaping init of ours
)

// smallInit is where a zone without an init of its own sees the small one.
const smallInit = "/run/zone-init"

// findInit tells which init an image has. /sbin/init is the place where every
// distribution puts it.
func findInit(root *host.Root) initKind {
	f, err := root.Open("/sbin/init", unix.O_PATH, 0)
	if err != nil {
		return initNone
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
		return initNone
	}
	target, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		return initNone
	}
	switch path.Base(target) {
	case "systemd":
		return initSystemd
	case "busybox":
		// Without openrc busybox's init has nothing to start, and starts it
		// over and over.
		if root.Exists("/sbin/openrc") {
			return initBusybox
		}
		return initNone
	}
	return initSysV
}

// args returns the command line of the first process.
func (k initKind) args() []string {
	if k == initNone {
		return []string{smallInit, "-P"}
	}
	return []string{"/sbin/init"}
}

// stopScripts runs what a distribution lays down for halting, in the order of
// the names, as the init that is missing would.
const stopScripts = `for s in /etc/rc0.d/K*; do [ -x "$s" ] && "$s" stop; done; kill -TERM -1; sleep 0.2`

// stopCommand returns the command that asks the zone to shut down; nil means
// that a signal to the first process does.
func (k initKind) stopCommand() []string {
	switch k {
	case initSysV:
		return []string{"/sbin/shutdown", "-h", "now"}
	case initBusybox:
		return []string{"/sbin/poweroff"}
	case initNone:
		return []string{"/bin/sh", "-c", stopScripts}
	}
	return nil
}

// powerOffSignal is SIGRTMIN+3, by which systemd is asked to power off.
const powerOffSignal = unix.Signal(34 + 3)
