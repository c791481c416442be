package host

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	for _, durable := range []bool{false, true} {
		for _, perm := range []fs.FileMode{0o600, 0o644, 0o666, 0o755} { // whatever the umask
			must(t, WriteFile(file, []byte(perm.String()), perm, durable))
			data, err := os.ReadFile(file)
			st, _ := os.Stat(file)
			if err != nil || string(data) != perm.String() || st.Mode().Perm() != perm {
				t.Errorf("%q, %v, %v", data, st.Mode(), err)
			}
		}
	}
	must(t, os.Symlink(file, filepath.Join(dir, "link")))
	must(t, WriteFile(filepath.Join(dir, "link"), []byte("new"), 0o600, false))
	if data, _ := os.ReadFile(file); string(data) == "new" {
		t.Error("followed a link")
	}
}

func TestWriteFileLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "d/x"), 0o755))
	if err := WriteFile(filepath.Join(dir, "d"), []byte("x"), 0o600, false); err == nil {
		t.Error("replaced a directory")
	}
	if err := WriteFile(filepath.Join(dir, "missing/f"), nil, 0o600, false); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left %v", entries)
	}
}

// A reader sees one whole content or another.
func TestWriteFileIsAtomic(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	content := func(i int) []byte { return bytes.Repeat([]byte{byte('a' + i)}, 100_000) }
	must(t, WriteFile(file, content(0), 0o600, false))
	var writers sync.WaitGroup
	done := make(chan struct{})
	for i := range 2 {
		writers.Go(func() {
			for range 100 {
				if err := WriteFile(file, content(i), 0o600, false); err != nil {
					t.Error(err)
				}
			}
		})
	}
	go func() { writers.Wait(); close(done) }()
	for {
		data, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(data, content(0)) && !bytes.Equal(data, content(1)) {
			t.Fatalf("%d bytes, %v", len(data), err)
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

func TestJSON(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	must(t, WriteJSON(file, map[string]int{"a": 1}, true))
	var got map[string]int
	if err := ReadJSON(file, &got); err != nil || got["a"] != 1 {
		t.Errorf("%v, %v", got, err)
	}
	must(t, os.WriteFile(file, []byte(`{"a":`), 0o600))
	if err := ReadJSON(file, &got); err == nil {
		t.Error("read a file cut off")
	}
	if err := ReadJSON(file+"x", &got); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if err := WriteJSON(file, func() {}, false); err == nil {
		t.Error("wrote a function")
	}
}

func TestRenames(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	must(t, os.Mkdir(a, 0o755))
	must(t, os.WriteFile(filepath.Join(a, "in-a"), nil, 0o644))
	must(t, os.Mkdir(b, 0o755))
	if err := RenameNew(a, b); !errors.Is(err, fs.ErrExist) { // rename(2) replaces an empty directory
		t.Errorf("%v", err)
	}
	must(t, Exchange(a, b))
	if _, err := os.Stat(filepath.Join(b, "in-a")); err != nil {
		t.Error(err)
	}
	must(t, os.Remove(a))
	must(t, RenameNew(b, a))
	if err := Exchange(a, b); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if err := RenameNew(b, filepath.Join(dir, "c")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func TestNoSpace(t *testing.T) {
	for err, want := range map[error]bool{
		unix.ENOSPC: true, fmt.Errorf("write: %w", &fs.PathError{Err: unix.EDQUOT}): true, unix.EIO: false,
	} {
		if NoSpace(err) != want {
			t.Errorf("%v", err)
		}
	}
	if NoSpace(nil) {
		t.Error("nil")
	}
}
