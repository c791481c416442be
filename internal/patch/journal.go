package patch

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"zone/internal/errdefs"
	"zone/internal/host"
)

// What stands in the directory of runs:
//
//	lock             held by the process that patches; carries the run's name
//	active           names the run that is not finished, if any
//	RUN/run.json     the request and, at the end, the sums
//	RUN/zones/Z.json what became of zone Z; its phase is written before the step
//	RUN/Z.log        all that the programs in zone Z said
//	RUN/events.jsonl
const (
	lockName   = "lock"
	activeName = "active"
	runFile    = "run.json"
	zoneDir    = "zones"
)

// The phases of a zone. Up to phaseSnapshot nothing in it was changed (though
// an offline zone may be down); from phaseApplying to phaseChecking its root is
// in doubt; the rest are ends, but for phaseRollingBack.
const (
	phaseWaiting     = "waiting"
	phaseStopping    = "stopping"
	phaseSnapshot    = "snapshot"
	phaseApplying    = "applying"
	phaseVerifying   = "verifying"
	phaseBooting     = "booting"
	phaseChecking    = "checking"
	phaseRollingBack = "rolling back"
	phaseEnded       = "ended"
)

// newID names a run: sortable by time, unlike any other.
func newID(now time.Time) string {
	var b [2]byte
	_, _ = rand.Read(b[:])
	return now.UTC().Format("20060102-150405-") + hex.EncodeToString(b[:])
}

// lock takes the lock of all runs.
func (e *Engine) lock() (*host.Lock, error) {
	l, err := host.TryLock(filepath.Join(e.Dir, lockName))
	if errors.Is(err, host.ErrLocked) {
		who, _ := os.ReadFile(filepath.Join(e.Dir, lockName))
		id := strings.TrimSpace(string(who))
		return nil, errdefs.New(errdefs.Busy, "patch", "run %s is going on", id).
			WithHint("zone patch show %s", id)
	}
	if err != nil {
		return nil, fmt.Errorf("patch: %w", err)
	}
	return l, nil
}

// tell writes the run's name into the lock, for those who find it taken.
func tell(l *host.Lock, id string) error {
	f := l.File()
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(id+"\n"), 0)
	return err
}

// journal is the record of one run on disk. Safe for several goroutines.
type journal struct {
	base, dir string // Engine.Dir, and the run's own
	id        string
	note      func(Event)
	saved     func(zone string)

	mu     sync.Mutex // guards events, and keeps calls of note apart
	events *os.File
}

// openJournal begins a run: its directory is made and marked as active.
func (e *Engine) openJournal(id string, q *Request) (*journal, error) {
	j := e.journal(id)
	if err := os.MkdirAll(filepath.Join(j.dir, zoneDir), 0o700); err != nil {
		return nil, err
	}
	rep := &Report{Schema: 1, Run: id, State: StateRunning, Started: time.Now(), Request: *q}
	if err := host.WriteJSON(filepath.Join(j.dir, runFile), rep, true); err != nil {
		return nil, err
	}
	for _, z := range q.Zones {
		if err := j.save(&ZoneReport{Zone: z, Phase: phaseWaiting}); err != nil {
			return nil, err
		}
	}
	if err := host.WriteFile(filepath.Join(e.Dir, activeName), []byte(id+"\n"), 0o600, true); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(j.dir, "events.jsonl"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	j.events = f
	return j, nil
}

func (e *Engine) journal(id string) *journal {
	return &journal{base: e.Dir, dir: filepath.Join(e.Dir, id), id: id, note: e.Note, saved: e.saved}
}

// save puts a zone's record on disk.
func (j *journal) save(z *ZoneReport) error {
	if err := host.WriteJSON(filepath.Join(j.dir, zoneDir, z.Zone+".json"), z, true); err != nil {
		return fmt.Errorf("journal of %s: %w", z.Zone, err)
	}
	if j.saved != nil {
		j.saved(z.Zone)
	}
	return nil
}

// emit tells of an event.
func (j *journal) emit(ev Event) {
	ev.Time, ev.Run = time.Now(), j.id
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.events != nil && ev.Report == nil {
		_ = json.NewEncoder(j.events).Encode(ev)
	}
	if j.note != nil {
		j.note(ev)
	}
}

// log opens the log of a zone's programs.
func (j *journal) log(zone string) (io.WriteCloser, error) {
	return os.OpenFile(filepath.Join(j.dir, zone+".log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
}

// close ends the run: its report is on disk before the mark of activity goes.
// A dry run leaves nothing.
func (j *journal) close(rep *Report) error {
	head := *rep
	head.Zones = nil
	err := host.WriteJSON(filepath.Join(j.dir, runFile), &head, true)
	if err == nil {
		err = removeDurably(filepath.Join(j.base, activeName))
	}
	if j.events != nil {
		err = errors.Join(err, j.events.Close())
	}
	if rep.Request.DryRun && err == nil {
		err = os.RemoveAll(j.dir)
	}
	return err
}

func removeDurably(path string) error {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	return host.SyncDir(filepath.Dir(path))
}

// readReport puts a run's report together from its files.
func readReport(base, id string) (*Report, error) {
	var rep Report
	dir := filepath.Join(base, id)
	if err := host.ReadJSON(filepath.Join(dir, runFile), &rep); err != nil {
		return nil, fmt.Errorf("read patch run %s: %w", id, err)
	}
	for _, name := range rep.Request.Zones {
		z := &ZoneReport{Zone: name, Phase: phaseWaiting}
		err := host.ReadJSON(filepath.Join(dir, zoneDir, name+".json"), z)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("read patch run %s: %w", id, err)
		}
		rep.Zones = append(rep.Zones, z)
	}
	slices.SortStableFunc(rep.Zones, func(a, b *ZoneReport) int { return strings.Compare(a.Zone, b.Zone) })
	return &rep, nil
}
