package zone

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"zone/internal/errdefs"
)

func TestJournalEntryLives(t *testing.T) {
	w := newWorld(t)
	j, err := w.begin(opCreate, DefaultPool, "a", "b")
	if err != nil {
		t.Fatal(err)
	}
	must(j.step("place", "detail"))
	if got := w.abandonedEntries(); len(got) != 0 {
		t.Errorf("a living owner's entry counts as abandoned: %v", got)
	}
	e, ok := w.entryOf("b")
	if !ok || e.Op != opCreate || e.Step != "place" || e.Detail != "detail" || e.PID != os.Getpid() {
		t.Errorf("entry %+v, %v", e, ok)
	}
	if _, ok := w.entryOf("c"); ok {
		t.Error("an entry concerns a zone that it does not name")
	}
	if err := w.Mend(t.Context()); err != nil || len(w.notes) > 0 {
		t.Errorf("mended somebody's work: %v %q", err, w.notes)
	}
	j.lock.Unlock() // as if its owner had been killed
	got := w.abandonedEntries()
	if len(got) != 1 {
		t.Fatalf("abandoned: %v", got)
	}
	again := abandoned(got[0], 0)
	if again == nil || again.Step != "place" || len(again.Zones) != 2 {
		t.Fatalf("taken over: %+v", again)
	}
	if abandoned(got[0], 0) != nil {
		t.Error("two took one entry over")
	}
	again.end()
	if left := names(w.journalDir()); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

func TestJournalCutOff(t *testing.T) {
	for _, c := range []struct {
		name, content, step string
	}{
		{"whole", `{"id":"x","op":"create","step":"begin","zones":["a"]}` + "\n", "begin"},
		{"last line cut off", `{"id":"x","op":"create","step":"begin","zones":["a"]}` + "\n" + `{"id":"x","op":"cre`, "begin"},
		{"cut off before the newline", `{"step":"begin","zones":["a"]}` + "\n" + `{"step":"place","zones":["a"]}`, "begin"},
		{"two lines", `{"step":"begin","zones":["a"]}` + "\n" + `{"step":"place","zones":["a"]}` + "\n", "place"},
		{"zeros after a crash", `{"step":"begin","zones":["a"]}` + "\n\x00\x00\x00\n", "begin"},
		{"first line cut off", `{"id":"x","op":"create","st`, ""},
		{"empty", "", ""},
		{"no zones", `{"op":"boot"}` + "\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "x")
			put(file, c.content)
			j := abandoned(file, 0)
			if c.step == "" {
				if j != nil || len(names(filepath.Dir(file))) != 0 {
					t.Errorf("%+v; left %v", j, names(filepath.Dir(file)))
				}
				return
			}
			if j == nil || j.Step != c.step {
				t.Fatalf("%+v, want step %s", j, c.step)
			}
			j.end()
		})
	}
}

func TestAbandonedMakesNoEntry(t *testing.T) {
	dir := t.TempDir()
	if j := abandoned(filepath.Join(dir, "ended"), 0); j != nil || len(names(dir)) != 0 {
		t.Errorf("%+v, left %v", j, names(dir))
	}
}

func TestTwoMenders(t *testing.T) {
	w := newWorld(t)
	p := w.pool(t)
	must(p.Create(t.Context(), "tmp/e1/b/active"))
	w.journalOf(t, Entry{ID: "e1", Op: opCreate, Zones: []string{"b"}}, "")
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if err := w.Mend(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	w.whole(t)
	if len(w.notes) != 1 || !strings.Contains(w.notes[0], `"zone create" of b`) && !strings.Contains(w.notes[0], "`zone create` of b") {
		t.Errorf("notes %q", w.notes)
	}
}

func TestVerbMendsOnlyItsZones(t *testing.T) {
	w := newWorld(t)
	w.create(t, "a")
	w.journalOf(t, Entry{ID: "e1", Op: opCreate, Zones: []string{"x"}}, "")
	must(w.Snapshot(t.Context(), "a", "s"))
	if len(w.notes) > 0 || len(w.abandonedEntries()) != 1 {
		t.Errorf("mended what belongs to another zone: %q", w.notes)
	}
	w.create(t, "x")
	if len(w.notes) != 1 {
		t.Errorf("notes %q", w.notes)
	}
	w.whole(t)
}

func TestMendPartlyPlaced(t *testing.T) {
	w := newWorld(t)
	w.create(t, "a", "b")
	p := w.pool(t)
	must(os.MkdirAll(p.Path("tmp/e1"), 0o700))
	must(os.Rename(p.Path("zones/b"), p.Path("tmp/e1/b"))) // not placed yet
	w.journalOf(t, Entry{ID: "e1", Op: opClone, Step: "place", Zones: []string{"a", "b"}}, "")
	if err := w.Mend(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.whole(t)
	if !w.exists(t, "a") || w.exists(t, "b") || !strings.Contains(w.notes[0], "a complete; b not created") {
		t.Errorf("zones %v, notes %q", names(p.Path("zones")), w.notes)
	}
}

// An entry must not outlive its pool as an error of every command.
func TestMendWithoutPool(t *testing.T) {
	for _, op := range []string{opCreate, opClone, opRollback, opDelete, opCopy} {
		w := newWorld(t)
		w.journalOf(t, Entry{Op: op, Zones: []string{"a"}}, "")
		must(w.Pools.Destroy(t.Context(), DefaultPool))
		if err := w.Mend(t.Context()); err != nil || len(names(w.journalDir())) > 0 {
			t.Errorf("%s: %v, left %v", op, err, names(w.journalDir()))
		}
	}
}

func TestMendUnknownOperation(t *testing.T) {
	w := newWorld(t)
	w.journalOf(t, Entry{Op: "of the future", Zones: []string{"a"}}, "")
	if err := w.Mend(t.Context()); err == nil || len(names(w.journalDir())) != 1 {
		t.Errorf("%v: what is not understood must stay", err)
	}
}

// When neither root can be told to be the old one, none may be deleted.
func TestMendRollbackKeepsWhatItCannotTell(t *testing.T) {
	w := newWorld(t)
	w.create(t, "a")
	p := w.pool(t)
	must(p.Snapshot(t.Context(), "zones/a/active", "tmp/e1/active", false))
	put(filepath.Join(p.Path("tmp/e1/active"), "upper/data"), "precious")
	put(w.at(t, "a").activePath(recordFile), "{")
	w.journalOf(t, Entry{ID: "e1", Op: opRollback, Step: stepExchange, Detail: "kept", Zones: []string{"a"}}, "")
	if err := w.Mend(t.Context()); err == nil {
		t.Error("mended what could not be told")
	}
	if got := get(p.Path("tmp/e1/active/upper/data")); got != "precious" {
		t.Errorf("lost: %s", got)
	}
}

// One broken zone must not keep others from being mended.
func TestMendBesideBrokenZone(t *testing.T) {
	w := newWorld(t)
	w.create(t, "broken", "a")
	put(w.upper(t, "a", "data"), "x")
	must(w.Clone(t.Context(), "a", []string{"b"}))
	put(w.at(t, "broken").activePath(recordFile), "{")
	w.journalOf(t, Entry{Op: opCreate, Zones: []string{"x"}}, "")
	if err := w.Mend(t.Context()); err != nil {
		t.Error(err)
	}
	must(w.Delete(t.Context(), "b", false))
	if len(w.layers(t)) != 1 {
		t.Error("a layer was dropped while a record could not be read: it may be needed")
	}
	must(w.Delete(t.Context(), "broken", false))
	w.whole(t)
}

func TestBusyNamesTheOperation(t *testing.T) {
	w := newWorld(t)
	w.create(t, "a")
	w.Patience = 20 * time.Millisecond
	l, err := w.lockOnly(t.Context(), "x", 0, "a")
	if err != nil {
		t.Fatal(err)
	}
	defer l.unlock()
	err = w.Snapshot(t.Context(), "a", "s")
	if !errdefs.Is(err, errdefs.Busy) || !strings.Contains(err.Error(), "snapshot a: another command is working on it") {
		t.Errorf("%v", err)
	}
	j, err := w.begin(opRollback, DefaultPool, "a")
	if err != nil {
		t.Fatal(err)
	}
	defer j.end()
	for _, err := range []error{
		w.Delete(t.Context(), "a", true), w.Clone(t.Context(), "a", []string{"b"}), w.Boot(t.Context(), "a"), w.Halt(t.Context(), "a"),
	} {
		if !errdefs.Is(err, errdefs.Busy) || !strings.Contains(err.Error(), "`zone rollback`") {
			t.Errorf("%v", err)
		}
	}
}

// An undo that fails leaves the entry, so that the next command tries again.
func TestFailedUndoIsMendedLater(t *testing.T) {
	w := newWorld(t)
	boom := errors.New("boom")
	w.hook = func(call string) error {
		if strings.HasSuffix(call, "active done") || strings.HasPrefix(call, "Delete") {
			return boom
		}
		return nil
	}
	err := w.Create(t.Context(), CreateSpec{Name: "a", Image: "base"})
	if !errors.Is(err, boom) {
		t.Fatal(err)
	}
	if len(w.abandonedEntries()) != 1 {
		t.Error("nothing explains what is left in tmp")
	}
	w.hook = nil
	must(w.Mend(t.Context()))
	w.whole(t)
	w.create(t, "a")
}
