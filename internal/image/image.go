// Package image keeps images: immutable, versioned root file systems from
// which zones are made. An image is one dataset, images/NAME@VERSION, that
// holds image.json and root/. The package builds images, finds and deletes
// them; who uses an image is known by package zone alone, which says so
// through a function given to Delete. A Store may be used from several
// goroutines and several processes at once.
package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/storage"
)

// Schema is the version of image.json that this program writes.
const Schema = 1

// Image describes one version of one image.
type Image struct {
	Schema        int       `json:"schema"`
	Name          string    `json:"name"`
	Version       int       `json:"version"` // 1, 2, …
	UUID          string    `json:"uuid"`
	Source        string    `json:"source"` // as it was typed: "debian:bookworm"
	Created       time.Time `json:"created"`
	OS            OS        `json:"os"`
	Arch          string    `json:"arch"`           // as Go names it: amd64, arm64; "" when not known
	PackageSystem string    `json:"package_system"` // apt, dnf, apk or ""
	Packages      int       `json:"packages"`       // installed packages; 0 when they cannot be counted
	Size          int64     `json:"size"`           // bytes of all files, hard links once
	Init          string    `json:"init"`           // path of the image's own init, or ""
	SuiteOnly     bool      `json:"suite_only"`     // built without updates and security fixes
}

// OS is what the image's os-release says of itself. All fields may be empty.
type OS struct {
	ID         string `json:"id"`
	VersionID  string `json:"version_id"`
	Codename   string `json:"codename"`
	PrettyName string `json:"pretty_name"`
}

// Ref is the full reference of the image, "debian12@2".
func (i Image) Ref() string { return fmt.Sprintf("%s@%d", i.Name, i.Version) }

// Where images and unfinished work stand in a pool.
const (
	imagesDir  = "images"
	tmpDir     = "tmp"
	workPrefix = "image-"
	metaFile   = "image.json"
	rootName   = "root"
)

// Store is the images of one pool.
type Store struct {
	Pool   storage.Pool
	Runner host.Runner
}

// Dataset returns the dataset of an image.
func (s *Store) Dataset(img Image) string { return imagesDir + "/" + img.Ref() }

// RootDir returns the path of an image's root file system.
func (s *Store) RootDir(img Image) string {
	return filepath.Join(s.Pool.Path(s.Dataset(img)), rootName)
}

// List returns all images by name, the newest version of each first. Images
// that cannot be read are left out and told in the error, which then comes
// together with the others.
func (s *Store) List(ctx context.Context) ([]Image, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(s.Pool.Path(imagesDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list images: %w", err)
	}
	var images []Image
	var bad []error
	for _, e := range entries {
		name, version, ok := splitDataset(e.Name())
		if !ok {
			continue
		}
		img, err := s.load(name, version)
		if errors.Is(err, fs.ErrNotExist) && !s.there(e.Name()) {
			continue // deleted since the directory was read
		}
		if err != nil {
			bad = append(bad, err)
			continue
		}
		images = append(images, img)
	}
	slices.SortFunc(images, func(a, b Image) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), b.Version-a.Version)
	})
	return images, errors.Join(bad...)
}

func (s *Store) there(base string) bool {
	_, err := os.Lstat(s.Pool.Path(imagesDir + "/" + base))
	return err == nil
}

func (s *Store) load(name string, version int) (Image, error) {
	want := Image{Name: name, Version: version}
	var img Image
	if err := host.ReadJSON(filepath.Join(s.Pool.Path(s.Dataset(want)), metaFile), &img); err != nil {
		return Image{}, fmt.Errorf("read image %s: %w", want.Ref(), err)
	}
	if img.Schema > Schema {
		return Image{}, errdefs.New(errdefs.NotSupported, "read image "+want.Ref(),
			"it was written by a newer zone (schema %d, this one knows %d)", img.Schema, Schema)
	}
	if img.Name != name || img.Version != version {
		return Image{}, errdefs.New(errdefs.Failed, "read image "+want.Ref(), "its %s belongs to %s", metaFile, img.Ref())
	}
	return img, nil
}

// Get returns the image that ref names: "debian12" is its newest version,
// "debian12@2" that one. An unknown image is errdefs.NotFound.
func (s *Store) Get(ctx context.Context, ref string) (Image, error) {
	matches, err := s.matching(ctx, ref)
	if err != nil {
		return Image{}, err
	}
	return matches[0], nil
}

// matching returns the images that ref names, newest first and never none.
func (s *Store) matching(ctx context.Context, ref string) ([]Image, error) {
	name, version, err := ParseRef(ref)
	if err != nil {
		return nil, err
	}
	// A damaged image must not hide the others: its error counts only when
	// nothing else answers.
	images, listErr := s.List(ctx)
	named := slices.DeleteFunc(slices.Clone(images), func(i Image) bool { return i.Name != name })
	found := slices.DeleteFunc(slices.Clone(named), func(i Image) bool { return version != 0 && i.Version != version })
	switch {
	case len(found) > 0:
		return found, nil
	case listErr != nil:
		return nil, listErr
	case len(named) > 0:
		return nil, errdefs.New(errdefs.NotFound, "image "+ref, "no such version; there is %s", refs(named)).
			WithHint("zone image list")
	}
	return nil, unknown(name, images)
}

func unknown(name string, images []Image) error {
	names := map[string]bool{}
	for _, i := range images {
		names[i.Name] = true
	}
	known := slices.Sorted(maps.Keys(names))
	if len(known) == 0 {
		return errdefs.New(errdefs.NotFound, "image "+name, "no such image; there is none yet").
			WithHint("zone image build %s --from debian:bookworm", name)
	}
	if near := config.Nearest(name, known); near != "" {
		return errdefs.New(errdefs.NotFound, "image "+name, "no such image; did you mean %s?", near).
			WithHint("zone image list")
	}
	return errdefs.New(errdefs.NotFound, "image "+name, "no such image; there is %s", strings.Join(known, ", ")).
		WithHint("zone image list")
}

// ParseRef splits "debian12@2" into name and version; the version is 0 when
// none is given. A malformed reference is errdefs.Usage.
func ParseRef(ref string) (name string, version int, err error) {
	name, v, given := strings.Cut(ref, "@")
	if err := checkName(name); err != nil {
		return "", 0, err
	}
	if !given {
		return name, 0, nil
	}
	version, ok := parseVersion(v)
	if !ok {
		return "", 0, errdefs.New(errdefs.Usage, "image "+strconv.Quote(ref), "%q is no version; use NAME or NAME@1, NAME@2, …", v)
	}
	return name, version, nil
}

// checkName applies the rule for names of zones to those of images.
func checkName(name string) error {
	err := config.ValidName(name)
	var e *errdefs.Error
	if errors.As(err, &e) {
		return errdefs.New(errdefs.Usage, "image name "+strconv.Quote(name), "%s", e.Why)
	}
	return err
}

// splitDataset reads the last element of an image's dataset name. Others, as
// the hidden ones being made or deleted, are not ok.
func splitDataset(base string) (name string, version int, ok bool) {
	name, v, given := strings.Cut(base, "@")
	version, ok = parseVersion(v)
	return name, version, given && ok && name != "" && name[0] != '.'
}

// parseVersion takes the one spelling of each version: 2 and not 02 or +2.
func parseVersion(s string) (int, bool) {
	n, err := strconv.Atoi(s)
	return n, err == nil && n > 0 && strconv.Itoa(n) == s
}

func refs(images []Image) string {
	var names []string
	for _, i := range images {
		names = append(names, i.Ref())
	}
	return strings.Join(names, ", ")
}
