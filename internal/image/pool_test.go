package image

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"zone/internal/storage/storagetest"
)

// dirPool is a fake pool; fail makes a call of that name an error.
type dirPool struct {
	*storagetest.Fake
	fail string
}

var errInjected = errors.New("injected")

// Sync fails always ("Sync") or from the second call on ("second Sync").
func (p *dirPool) Sync(ctx context.Context) error {
	switch p.fail {
	case "Sync":
		return errInjected
	case "second Sync":
		p.fail = "Sync"
	}
	return p.Fake.Sync(ctx)
}

// left lists what stands in the pool, two levels deep, without the one lock
// that stays.
func (p *dirPool) left(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, dir := range []string{tmpDir, imagesDir} {
		entries, err := os.ReadDir(p.Path(dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		for _, e := range entries {
			if name := dir + "/" + e.Name(); name != "tmp/images.lock" {
				names = append(names, name)
			}
		}
	}
	return names
}

func newStore(t *testing.T) (*Store, *dirPool) {
	t.Helper()
	p := &dirPool{Fake: storagetest.NewFake(t)}
	p.Fail = func(op, dataset string) error {
		if op == p.fail || op+" "+dataset == p.fail {
			return errInjected
		}
		return nil
	}
	return &Store{Pool: p}, p
}

// makeTree writes files below dir: content by path. A path that ends in "/"
// is a directory, content that starts with "->" the target of a symbolic
// link, and content that starts with "#!" or ELF is executable.
func makeTree(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	check := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	for name, content := range files {
		path := filepath.Join(dir, name)
		check(os.MkdirAll(filepath.Dir(path), 0o755))
		switch {
		case name[len(name)-1] == '/':
			check(os.MkdirAll(path, 0o755))
		case len(content) > 2 && content[:2] == "->":
			check(os.Symlink(content[2:], path))
		case len(content) > 2 && (content[:2] == "#!" || content[:2] == "\x7fE"):
			check(os.WriteFile(path, []byte(content), 0o755))
		default:
			check(os.WriteFile(path, []byte(content), 0o644))
		}
	}
}

// zoneSpec builds an image from a tree, by way of the hook for zones.
func zoneSpec(t *testing.T, name string, files map[string]string) BuildSpec {
	return BuildSpec{
		Name: name, Source: Source{SourceZone, "web"},
		Fill: func(_ context.Context, dir string) error {
			makeTree(t, dir, files)
			return nil
		},
	}
}

var smallRoot = map[string]string{"etc/": "", "bin/sh": "#!small"}
