package zone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/host"
)

// State is what users call the condition of a zone.
type State string

// The states, as zoneadm names them.
const (
	Configured   State = "configured"    // it has a configuration and no root
	Incomplete   State = "incomplete"    // being created or deleted, or cut off in that
	Installed    State = "installed"     // its root is there; nothing runs
	Ready        State = "ready"         // platform up, no process of its own yet
	Running      State = "running"       // its first process runs
	ShuttingDown State = "shutting_down" // being stopped
	Down         State = "down"          // its processes ended; not yet cleared away
	Mounted      State = "mounted"       // its root is up for maintenance, services are not
	Unavailable  State = "unavailable"   // its dataset cannot be read
)

// mode is what a container was made for.
type mode string

const (
	modeBoot    mode = "boot"
	modeReady   mode = "ready"
	modeScratch mode = "scratch"
)

// running is the run-time record of a zone, in $ZONE_RUN: where its processes
// are to be looked for. Whether they are there, the kernel says.
type running struct {
	Schema    int         `json:"schema"`
	Mode      mode        `json:"mode"`
	Pool      string      `json:"pool"`
	PID       int         `json:"pid"`
	StartTick uint64      `json:"start_tick"` // tells a process from a later one with its number
	HostLink  string      `json:"host_link"`
	Address   netip.Addr  `json:"address"`
	InitKind  initKind    `json:"init_kind"`
	Booted    time.Time   `json:"booted"`
	Limits    config.Zone `json:"limits"` // the configuration it was booted with
}

func (s *Service) readRunning(name string) (running, error) {
	var r running
	err := host.ReadJSON(filepath.Join(s.runDir(name), "run.json"), &r)
	return r, err
}

func (s *Service) writeRunning(name string, r running) error {
	r.Schema = 1
	return host.WriteJSON(filepath.Join(s.runDir(name), "run.json"), r, false)
}

// alive asks the kernel whether the zone's first process is there and is the
// one that was recorded.
func (r running) alive() bool {
	tick, state, err := startTick(r.PID)
	return err == nil && tick == r.StartTick && state != 'Z' && state != 'X'
}

// startTick returns the start time of a process in clock ticks since boot, and
// its state letter: X also for one that is on its way out.
func startTick(pid int) (uint64, byte, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	return parseStat(data)
}

// exiting is PF_EXITING of linux/sched.h. The first process of a zone may stay
// in that for a while, until all others of the zone have ended; it shows as
// sleeping meanwhile.
const exiting = 0x4

func parseStat(data []byte) (tick uint64, state byte, err error) {
	// The second field is the program's name in parentheses; it may hold spaces.
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) < 20 {
		return 0, 0, errors.New("/proc/PID/stat: too short")
	}
	flags, err := strconv.ParseUint(string(fields[6]), 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("/proc/PID/stat: flags: %w", err)
	}
	state = fields[0][0]
	if flags&exiting != 0 {
		state = 'X'
	}
	tick, err = strconv.ParseUint(string(fields[19]), 10, 64)
	return tick, state, err
}

// open returns a descriptor of the zone's first process, which can be waited
// for and signalled without ever meeting another process of the same number.
func (r running) open() (int, error) {
	fd, err := unix.PidfdOpen(r.PID, 0)
	if err != nil {
		return -1, err
	}
	if !r.alive() {
		_ = unix.Close(fd)
		return -1, unix.ESRCH
	}
	return fd, nil
}

// Status is one line of `zone list`.
type Status struct {
	Name      string     `json:"name"`
	State     State      `json:"state"`
	Why       string     `json:"why,omitempty"` // of a state that needs a look
	Pool      string     `json:"pool"`
	Root      string     `json:"root"`
	Image     string     `json:"image"`
	Address   string     `json:"address"`
	UUID      string     `json:"uuid"`
	Path      string     `json:"path"`
	PID       int        `json:"pid,omitempty"`
	Booted    *time.Time `json:"booted,omitempty"`
	Created   time.Time  `json:"created"`
	ClonedOf  string     `json:"cloned_of,omitempty"`
	Layers    int        `json:"layers"`
	Snapshots int        `json:"snapshots"`
}

// List tells the status of every zone, sorted by name. It starts no program.
func (s *Service) List(ctx context.Context) ([]Status, error) {
	places, err := s.Places(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]Status, 0, len(places))
	for _, p := range places {
		list = append(list, s.status(p))
	}
	return list, nil
}

// State returns the state of one zone.
func (s *Service) State(ctx context.Context, name string) (State, error) {
	at, err := s.Find(ctx, name)
	if err != nil {
		return "", err
	}
	return s.status(at).State, nil
}

func (s *Service) status(at Place) Status {
	st := Status{Name: at.Name, Pool: at.Pool.Info().Name, Path: at.activePath("")}
	r, err := readRecord(at.activePath(""))
	if err != nil {
		st.State, st.Why = Unavailable, err.Error()
		if errors.Is(err, fs.ErrNotExist) {
			st.State = Incomplete
		}
	} else {
		st.UUID, st.Root, st.Image, st.Created, st.ClonedOf = r.UUID, r.Root, r.Image, r.Created, r.ClonedOf
		st.Layers = len(r.Layers)
		st.State = Installed
		if r.Address.IsValid() {
			st.Address = r.Address.String()
		}
	}
	s.addRunning(&st)
	if snaps, err := os.ReadDir(at.dir()); err == nil {
		for _, e := range snaps {
			if strings.HasPrefix(e.Name(), "@") {
				st.Snapshots++
			}
		}
	}
	return st
}

func (s *Service) addRunning(st *Status) {
	run, err := s.readRunning(st.Name)
	if err != nil {
		return
	}
	if !run.alive() {
		st.State, st.Why = Down, "its first process has ended"
		return
	}
	st.PID, st.Booted = run.PID, &run.Booted
	switch run.Mode {
	case modeScratch:
		st.State = Mounted
	case modeReady:
		st.State = Ready
	default:
		st.State = Running
		if e, ok := s.entryOf(st.Name); ok && e.Op == opHalt {
			st.State = ShuttingDown
		}
	}
}

// need returns the run-time record of a zone that is in one of the given
// modes; otherwise an error for the operation op.
func (s *Service) need(op, name string, modes ...mode) (running, error) {
	run, err := s.readRunning(name)
	if err == nil && run.alive() {
		for _, m := range modes {
			if run.Mode == m {
				return run, nil
			}
		}
	}
	return run, errdefs.New(errdefs.WrongState, op+" "+name, "the zone is not running").WithHint("zone boot %s", name)
}

// idle refuses with WrongState when anything of the zone runs.
func (s *Service) idle(op string, at Place) error {
	st := s.status(at)
	switch st.State {
	case Installed, Configured, Incomplete, Unavailable:
		return nil
	case Down:
		return s.teardown(context.Background(), at.Name)
	}
	return errdefs.New(errdefs.WrongState, op+" "+at.Name, "the zone is %s; allowed when it is installed", st.State).
		WithHint("zone halt %s", at.Name)
}
