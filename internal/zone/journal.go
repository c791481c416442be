package zone

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"zone/internal/errdefs"
	"zone/internal/host"
)

// Entry is what the journal holds of one change while it is under way: enough
// to explain it and to finish it or take it back. The process that makes the
// change holds a lock on the entry's file; an entry whose lock can be taken was
// cut off.
type Entry struct {
	ID      string    `json:"id"`
	Op      string    `json:"op"`
	Step    string    `json:"step"`
	Zones   []string  `json:"zones"`
	Pool    string    `json:"pool,omitempty"`
	Detail  string    `json:"detail,omitempty"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
}

// The operations that are journaled.
const (
	opCreate   = "create"
	opClone    = "clone"
	opBoot     = "boot"
	opHalt     = "halt"
	opMount    = "mount"
	opRollback = "rollback"
	opDelete   = "delete"
	opCopy     = "image build"

	opBECreate   = "be create"
	opBEActivate = "be activate"
	opSend       = "send"
	opReceive    = "receive"
	opMove       = "move"
)

// journal is an open entry.
type journal struct {
	Entry
	lock *host.Lock
}

func (s *Service) journalDir() string { return filepath.Join(s.Home, "journal") }

// begin writes an entry. The locks of the zones must be held.
func (s *Service) begin(op, pool string, zones ...string) (*journal, error) {
	e := Entry{ID: newID(), Op: op, Step: "begin", Zones: zones, Pool: pool, PID: os.Getpid(), Started: time.Now()}
	// A look at the journal by another process may hold the new file for a moment.
	lock, err := host.WaitLock(context.Background(), filepath.Join(s.journalDir(), e.ID), time.Second)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	j := &journal{Entry: e, lock: lock}
	if err := j.append(); err != nil {
		lock.Remove()
		return nil, err
	}
	return j, nil
}

// step notes that the change has come to a new step, before it is begun.
func (j *journal) step(name, detail string) error {
	j.Step, j.Detail = name, detail
	return j.append()
}

// append adds the entry's present state; the last whole line of the file is
// the one that counts, so a cut-off write does no harm.
func (j *journal) append() error {
	line, err := json.Marshal(j.Entry)
	if err != nil {
		return err
	}
	if _, err := j.lock.File().Write(append(line, '\n')); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// end removes the entry: the change is whole, or wholly taken back.
func (j *journal) end() { j.lock.Remove() }

// endUnless ends the entry or, when finishing or taking back the change
// failed, leaves it for the next command to mend.
func (j *journal) endUnless(failed error) {
	if failed != nil {
		j.lock.Unlock()
		return
	}
	j.end()
}

// abandoned takes over the entry at path if its owner is gone; it returns nil
// if the owner lives, or the entry has ended meanwhile. wait bounds the time
// that another process may take for a look at the same entry.
func abandoned(path string, wait time.Duration) *journal {
	lock, err := host.WaitLock(context.Background(), path, wait)
	if err != nil {
		return nil
	}
	data, err := io.ReadAll(lock.File())
	if err != nil {
		lock.Unlock()
		return nil
	}
	e, ok := parseEntry(data)
	if !ok {
		lock.Remove() // nothing was begun before the first line was whole
		return nil
	}
	return &journal{Entry: e, lock: lock}
}

// parseEntry reads the last whole line of an entry's file. What follows the
// last newline was cut off.
func parseEntry(data []byte) (Entry, bool) {
	lines := bytes.Split(data, []byte("\n"))
	for _, line := range slices.Backward(lines[:len(lines)-1]) {
		var e Entry
		if json.Unmarshal(line, &e) == nil && len(e.Zones) > 0 {
			return e, true
		}
	}
	return Entry{}, false
}

// abandonedEntries lists the paths of entries whose owner is gone. It changes
// nothing.
func (s *Service) abandonedEntries() []string {
	entries, err := os.ReadDir(s.journalDir())
	if err != nil {
		return nil
	}
	var paths []string
	for _, e := range entries {
		p := filepath.Join(s.journalDir(), e.Name())
		if j := abandoned(p, 0); j != nil {
			j.lock.Unlock()
			paths = append(paths, p)
		}
	}
	return paths
}

// zoneLock is held by whoever changes a zone.
type zoneLock struct {
	locks []*host.Lock
}

func (l *zoneLock) unlock() {
	for _, k := range l.locks {
		k.Unlock()
	}
}

// lock takes the locks of zones, in order of name, and mends what an
// interrupted command left behind in them.
func (s *Service) lock(ctx context.Context, op string, names ...string) (*zoneLock, error) {
	l, err := s.lockOnly(ctx, op, s.patience(), names...)
	if err != nil {
		return nil, err
	}
	for _, p := range s.abandonedEntries() {
		if err := s.mendOwned(ctx, p, names); err != nil {
			l.unlock()
			return nil, err
		}
	}
	return l, nil
}

func (s *Service) lockOnly(ctx context.Context, op string, wait time.Duration, names ...string) (*zoneLock, error) {
	names = slices.Sorted(slices.Values(names))
	l := &zoneLock{}
	for _, n := range slices.Compact(names) {
		k, err := host.WaitLock(ctx, s.lockPath(n), wait)
		if err != nil {
			l.unlock()
			if errors.Is(err, host.ErrLocked) {
				return nil, s.busy(op, n)
			}
			return nil, err
		}
		l.locks = append(l.locks, k)
	}
	return l, nil
}

func (s *Service) lockPath(name string) string { return filepath.Join(s.Run, "locks", "zones", name) }

func (s *Service) busy(op, name string) error {
	why := "another command is working on it"
	if e, ok := s.entryOf(name); ok {
		why = fmt.Sprintf("`zone %s` (process %d, since %s) is working on it", e.Op, e.PID, e.Started.Format(time.TimeOnly))
	}
	return errdefs.New(errdefs.Busy, op+" "+name, "%s", why)
}

// entryOf returns the journal entry that concerns a zone, alive or not.
func (s *Service) entryOf(name string) (Entry, bool) {
	entries, err := os.ReadDir(s.journalDir())
	if err != nil {
		return Entry{}, false
	}
	for _, f := range entries {
		data, err := os.ReadFile(filepath.Join(s.journalDir(), f.Name()))
		if err != nil {
			continue
		}
		if e, ok := parseEntry(data); ok && slices.Contains(e.Zones, name) {
			return e, true
		}
	}
	return Entry{}, false
}
