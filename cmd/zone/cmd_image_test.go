package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zone/internal/errdefs"
	"zone/internal/image"
	"zone/internal/storage"
	"zone/internal/storage/storagetest"
	"zone/internal/ui"
)

// onePool is an imageService with one pool; users are the zones of any image.
type onePool struct {
	pool  storage.Pool
	users []string
}

func (s *onePool) Pool(context.Context, string) (storage.Pool, error) { return s.pool, nil }

func (s *onePool) Images(p storage.Pool) *image.Store { return &image.Store{Pool: p} }

func (s *onePool) ImageUsers(storage.Pool, string) ([]string, error) { return s.users, nil }

func (s *onePool) LockImages(context.Context, storage.Pool) (func(), error) { return func() {}, nil }

func (s *onePool) FillFromZone(string) func(context.Context, string) error {
	return func(_ context.Context, dir string) error {
		if err := os.MkdirAll(filepath.Join(dir, "etc"), 0o755); err != nil {
			return err
		}
		if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "etc/os-release"), []byte("ID=test\nVERSION_ID=1\n"), 0o644); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "bin/sh"), []byte("#!"), 0o755)
	}
}

func newImageHost(t *testing.T) (a *app, h imageHost, service *onePool, stdout *bytes.Buffer) {
	t.Helper()
	stdout = &bytes.Buffer{}
	service = &onePool{pool: storagetest.NewFake(t)}
	return &app{stdin: strings.NewReader(""), stdout: stdout, stderr: &bytes.Buffer{}}, imageHost{service, "", []string{"tank"}}, service, stdout
}

func buildTestImage(t *testing.T, a *app, h imageHost, name string) {
	t.Helper()
	spec := image.BuildSpec{Name: name}
	if err := completeBuild(&spec, "zone:web"); err != nil {
		t.Fatal(err)
	}
	if err := imageBuild(t.Context(), a, h, spec); err != nil {
		t.Fatal(err)
	}
}

func TestImageBuildAndList(t *testing.T) {
	a, h, _, out := newImageHost(t)
	buildTestImage(t, a, h, "web")
	buildTestImage(t, a, h, "web")
	if out.String() != "web@1\nweb@2\n" {
		t.Errorf("build printed %q", out)
	}
	for _, c := range []struct {
		opt  ui.ListOptions
		want string
	}{
		{ui.ListOptions{Quiet: true}, "web@2\nweb@1\n"},
		{ui.ListOptions{Columns: []string{"name", "version", "os", "packages", "init"}}, "NAME  VERSION  OS      PACKAGES  INIT\nweb         2  test 1         -  -\nweb         1  test 1         -  -\n"},
	} {
		out.Reset()
		if err := imageList(t.Context(), a, h, c.opt); err != nil || out.String() != c.want {
			t.Errorf("list printed %q, %v; want %q", out, err, c.want)
		}
	}
	out.Reset()
	if err := imageList(t.Context(), a, h, ui.ListOptions{Format: "json", Key: "images"}); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Schema int
		Images []imageRow
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || got.Schema != 1 || len(got.Images) != 2 || got.Images[0].Pool != "tank" || got.Images[0].Version != 2 {
		t.Errorf("%v in %s", err, out)
	}
}

func TestImageShow(t *testing.T) {
	a, h, service, out := newImageHost(t)
	buildTestImage(t, a, h, "web")
	service.users = []string{"z1", "z2"}
	out.Reset()
	if err := imageShow(t.Context(), a, h, "web"); err != nil {
		t.Fatal(err)
	}
	for _, want := range [][]string{{"image:", "web@1"}, {"source:", "zone:web"}, {"used", "by:", "z1,", "z2"}, {"init:", "-"}} {
		if !hasLine(out.String(), want) {
			t.Errorf("no line %q in\n%s", want, out)
		}
	}
	a.format = ui.FormatJSON
	out.Reset()
	var d imageDetails
	if err := imageShow(t.Context(), a, h, "web@1"); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out.Bytes(), &d); err != nil || d.Name != "web" || !slices.Equal(d.UsedBy, service.users) {
		t.Errorf("%v in %s", err, out)
	}
}

func TestImageDelete(t *testing.T) {
	a, h, service, out := newImageHost(t)
	buildTestImage(t, a, h, "web")
	service.users = []string{"z1"}
	if err := imageDelete(t.Context(), a, h, "web", true, false); !errdefs.Is(err, errdefs.Busy) {
		t.Errorf("in use: %v", err)
	}
	service.users = nil
	out.Reset()
	if err := imageDelete(t.Context(), a, h, "web", false, true); err != nil || !strings.Contains(out.String(), "would delete image web@1") {
		t.Errorf("dry run: %v, %q", err, out)
	}
	if err := imageDelete(t.Context(), a, h, "web", false, false); !errdefs.Is(err, errdefs.Usage) || errdefs.HintOf(err) == "" {
		t.Errorf("without a terminal: %v", err)
	}
	if err := imageShow(t.Context(), a, h, "web@1"); err != nil {
		t.Errorf("deleted by a refused delete: %v", err)
	}
	if err := imageDelete(t.Context(), a, h, "web", true, false); err != nil {
		t.Error(err)
	}
	if err := imageDelete(t.Context(), a, h, "web", true, false); !errdefs.Is(err, errdefs.NotFound) {
		t.Errorf("second delete: %v", err)
	}
}

func TestImageWithoutPools(t *testing.T) {
	a, h, service, _ := newImageHost(t)
	service.pool, h.pools = nil, nil // a use of the pool would panic
	if err := imageShow(t.Context(), a, h, "web"); !errdefs.Is(err, errdefs.NotFound) {
		t.Errorf("show: %v", err)
	}
	if err := imageDelete(t.Context(), a, h, "web", true, false); !errdefs.Is(err, errdefs.NotFound) {
		t.Errorf("delete: %v", err)
	}
	if err := imageList(t.Context(), a, h, ui.ListOptions{}); err != nil {
		t.Errorf("list: %v", err)
	}
}

func TestImageBuildMistakes(t *testing.T) {
	for from, kind := range map[string]errdefs.Kind{
		"": errdefs.Usage, "debain:bookworm": errdefs.Usage, "oci:x": errdefs.NotSupported,
	} {
		if err := completeBuild(&image.BuildSpec{Name: "web"}, from); !errdefs.Is(err, kind) {
			t.Errorf("--from %q: %v", from, err)
		}
	}
	if err := completeBuild(&image.BuildSpec{Name: "a b"}, "debian:bookworm"); !errdefs.Is(err, errdefs.Usage) {
		t.Errorf("name: %v", err)
	}
	spec := &image.BuildSpec{Name: "web", SuiteOnly: true}
	if err := completeBuild(spec, "tar:x"); !errdefs.Is(err, errdefs.Usage) {
		t.Errorf("suite only from a tar: %v", err)
	}
}
