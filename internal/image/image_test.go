package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zone/internal/errdefs"
)

func mustBuild(t *testing.T, s *Store, name string) Image {
	t.Helper()
	img, err := s.Build(t.Context(), zoneSpec(t, name, smallRoot), nil)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func nobody(context.Context, Image) ([]string, error) { return nil, nil }

func TestBuildGetListDelete(t *testing.T) {
	s, p := newStore(t)
	var said []string
	first, err := s.Build(t.Context(), zoneSpec(t, "web", smallRoot), func(l string) { said = append(said, l) })
	if err != nil {
		t.Fatal(err)
	}
	second := mustBuild(t, s, "web")
	other := mustBuild(t, s, "db")
	if first.Version != 1 || second.Version != 2 || other.Version != 1 || first.UUID == second.UUID {
		t.Errorf("versions %d, %d, %d; UUIDs %s, %s", first.Version, second.Version, other.Version, first.UUID, second.UUID)
	}
	if len(said) == 0 {
		t.Error("no progress")
	}
	list, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Image{other, second, first}, list); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	for ref, want := range map[string]Image{"web": second, "web@1": first, "web@2": second, "db": other} {
		got, err := s.Get(t.Context(), ref)
		if err != nil || got != want {
			t.Errorf("Get(%q) = %s, %v", ref, got.Ref(), err)
		}
	}
	if _, err := os.Stat(filepath.Join(s.RootDir(first), "bin/sh")); err != nil {
		t.Error(err)
	}
	if err := s.Delete(t.Context(), "web@1", nobody); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"images/db@1", "images/web@2"}, p.left(t)); diff != "" {
		t.Errorf("after delete (-want +got):\n%s", diff)
	}
	if img := mustBuild(t, s, "web"); img.Version != 3 {
		t.Errorf("version %d after 2", img.Version)
	}
}

func TestGetErrors(t *testing.T) {
	s, _ := newStore(t)
	if _, err := s.Get(t.Context(), "debian12"); !errdefs.Is(err, errdefs.NotFound) || errdefs.HintOf(err) == "" {
		t.Errorf("empty store: %v", err)
	}
	mustBuild(t, s, "debian12")
	for _, c := range []struct {
		ref  string
		kind errdefs.Kind
		why  string
	}{
		{"debian13", errdefs.NotFound, "debian12"},
		{"debian12@2", errdefs.NotFound, "debian12@1"},
		{"debian12@0", errdefs.Usage, "version"},
		{"debian12@01", errdefs.Usage, "version"},
		{"debian12@", errdefs.Usage, "version"},
		{"../x", errdefs.Usage, ""},
		{"", errdefs.Usage, ""},
	} {
		_, err := s.Get(t.Context(), c.ref)
		if !errdefs.Is(err, c.kind) || !strings.Contains(err.Error(), c.why) {
			t.Errorf("Get(%q): %v", c.ref, err)
		}
	}
}

func TestDamagedImageHidesNoOther(t *testing.T) {
	s, p := newStore(t)
	good, bad := mustBuild(t, s, "good"), mustBuild(t, s, "bad")
	if err := os.WriteFile(filepath.Join(p.Path(s.Dataset(bad)), metaFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := s.List(t.Context())
	if err == nil || !strings.Contains(err.Error(), "bad@1") || len(list) != 1 {
		t.Errorf("list: %v, %v", list, err)
	}
	if got, err := s.Get(t.Context(), "good"); err != nil || got != good {
		t.Errorf("get good: %v", err)
	}
	if _, err := s.Get(t.Context(), "bad"); err == nil || errdefs.Is(err, errdefs.NotFound) {
		t.Errorf("get bad: %v", err)
	}
}

func TestDeleteRefuses(t *testing.T) {
	s, p := newStore(t)
	mustBuild(t, s, "web")
	users := func(context.Context, Image) ([]string, error) { return []string{"a", "b"}, nil }
	err := s.Delete(t.Context(), "web", users)
	if !errdefs.Is(err, errdefs.Busy) || !strings.Contains(err.Error(), "a, b") {
		t.Errorf("in use: %v", err)
	}
	blind := func(context.Context, Image) ([]string, error) { return nil, errInjected }
	if err := s.Delete(t.Context(), "web", blind); !errors.Is(err, errInjected) {
		t.Errorf("unknown use: %v", err)
	}
	mustBuild(t, s, "web")
	if err := s.Delete(t.Context(), "web", nobody); !errdefs.Is(err, errdefs.Usage) {
		t.Errorf("two versions: %v", err)
	}
	if err := s.Delete(t.Context(), "wob", nobody); !errdefs.Is(err, errdefs.NotFound) {
		t.Errorf("unknown: %v", err)
	}
	if diff := cmp.Diff([]string{"images/web@1", "images/web@2"}, p.left(t)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

func TestBuildUndo(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	for name, c := range map[string]struct {
		fail string
		fill func(ctx context.Context, dir string) error
		want error
	}{
		"create":    {fail: "Create", want: errInjected},
		"fill":      {fill: func(context.Context, string) error { return errInjected }, want: errInjected},
		"no root":   {fill: func(context.Context, string) error { return nil }},
		"read-only": {fail: "SetReadOnly", want: errInjected},
		"sync":      {fail: "Sync", want: errInjected},
		"last sync": {fail: "second Sync", want: errInjected},
		"rename":    {fail: "Rename images/web@1", want: errInjected},
		"cancelled": {fill: func(ctx context.Context, _ string) error { cancel(); return ctx.Err() }, want: context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			s, p := newStore(t)
			p.fail = c.fail
			spec := zoneSpec(t, "web", smallRoot)
			if c.fill != nil {
				spec.Fill = c.fill
			}
			_, err := s.Build(canceled, spec, nil)
			if err == nil || (c.want != nil && !errors.Is(err, c.want)) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			if left := p.left(t); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
		if canceled.Err() != nil {
			canceled, cancel = context.WithCancel(t.Context())
		}
	}
	cancel()
}

func TestBuildSpecChecked(t *testing.T) {
	s, p := newStore(t)
	debian := Source{SourceDebian, "bookworm"}
	for name, spec := range map[string]BuildSpec{
		"name":           {Name: "a/b", Source: debian},
		"include of tar": {Name: "a", Source: Source{SourceTar, "x"}, Include: []string{"nginx"}},
		"package":        {Name: "a", Source: debian, Include: []string{"--hook=x"}},
		"mirror":         {Name: "a", Source: debian, Mirror: "ftp://x/y"},
		"mirror spaces":  {Name: "a", Source: debian, Mirror: "http://x/y z"},
		"no file":        {Name: "a", Source: Source{SourceTar, "/nonexistent"}},
		"a directory":    {Name: "a", Source: Source{SourceTar, "/"}},
	} {
		if _, err := s.Build(t.Context(), spec, nil); !errdefs.Is(err, errdefs.Usage) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left := p.left(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestParallelBuildsGetDifferentVersions(t *testing.T) {
	s, p := newStore(t)
	const n = 8
	versions := make([]int, n)
	var wait sync.WaitGroup
	for i := range n {
		wait.Go(func() {
			img, err := s.Build(t.Context(), zoneSpec(t, "web", smallRoot), nil)
			if err != nil {
				t.Error(err)
			}
			versions[i] = img.Version
		})
	}
	wait.Wait()
	slices.Sort(versions)
	if diff := cmp.Diff([]int{1, 2, 3, 4, 5, 6, 7, 8}, versions); diff != "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
	if left := p.left(t); len(left) != n {
		t.Errorf("left: %v", left)
	}
}

func makeDataset(t *testing.T, p *dirPool, dataset string) {
	t.Helper()
	if err := p.Create(t.Context(), dataset); err != nil {
		t.Fatal(err)
	}
	makeTree(t, p.Path(dataset), smallRoot)
}

// A killed process leaves its datasets and a lock file that nobody holds.
func TestCleanRemovesWhatTheDeadLeft(t *testing.T) {
	s, p := newStore(t)
	kept := mustBuild(t, s, "web")
	dead, err := s.begin("unfinished build of image dead")
	if err != nil {
		t.Fatal(err)
	}
	makeDataset(t, p, dead.dataset())
	dead.lock.Unlock()
	staged, err := s.begin("unfinished deletion of image gone@1")
	if err != nil {
		t.Fatal(err)
	}
	makeDataset(t, p, staged.staged())
	staged.lock.Unlock()
	makeDataset(t, p, "tmp/image-unlocked")
	makeDataset(t, p, "tmp/zone-other")

	alive, err := s.begin("unfinished build of image alive")
	if err != nil {
		t.Fatal(err)
	}
	makeDataset(t, p, alive.dataset())

	removed, err := s.Clean(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(removed)
	want := []string{"unfinished build of image dead", "unfinished deletion of image gone@1", "unfinished work on an image"}
	if diff := cmp.Diff(want, removed); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
	stays := []string{alive.dataset(), alive.dataset() + ".lock", "tmp/zone-other", s.Dataset(kept)}
	if diff := cmp.Diff(stays, p.left(t)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	if err := alive.end(t.Context()); err != nil {
		t.Error(err)
	}
	if again, err := s.Clean(t.Context()); err != nil || len(again) > 0 {
		t.Errorf("second clean: %v, %v", again, err)
	}
}

func TestParseSource(t *testing.T) {
	for text, want := range map[string]Source{
		"debian:bookworm": {SourceDebian, "bookworm"},
		"tar:a:b.tar.gz":  {SourceTar, "a:b.tar.gz"},
		"zone:web1":       {SourceZone, "web1"},
	} {
		got, err := ParseSource(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("ParseSource(%q) = %v, %v", text, got, err)
		}
	}
	for text, kind := range map[string]errdefs.Kind{
		"":                  errdefs.Usage,
		"debian":            errdefs.Usage,
		"debian:":           errdefs.Usage,
		"debian:-x":         errdefs.Usage,
		"debian:book worm":  errdefs.Usage,
		"debain:bookworm":   errdefs.Usage,
		"zone:a/b":          errdefs.Usage,
		"ubuntu:noble":      errdefs.Usage,
		"oci:dir:tag":       errdefs.NotSupported,
		"registry:x/y:late": errdefs.NotSupported,
	} {
		_, err := ParseSource(text)
		if !errdefs.Is(err, kind) || !strings.Contains(err.Error(), "debian") && kind == errdefs.NotSupported {
			t.Errorf("ParseSource(%q): %v", text, err)
		}
	}
}

func TestLineWriter(t *testing.T) {
	var got []string
	w := &lineWriter{line: func(s string) { got = append(got, s) }}
	for _, part := range []string{"one\ntw", "o\r\n10%\r20%\r", "", "rest"} {
		if n, err := w.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatal(n, err)
		}
	}
	w.flush()
	if diff := cmp.Diff([]string{"one", "two", "10%", "20%", "rest"}, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}
