package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"zone/internal/errdefs"
	"zone/internal/host"
)

// BuildSpec says what image to build.
type BuildSpec struct {
	Name      string
	Source    Source
	Include   []string // packages to add; debian only
	Mirror    string   // address of the Debian mirror; "" takes the host's own; debian only
	SuiteOnly bool     // leave out updates and security fixes; debian only
	// Fill puts the root file system of the zone that Source names into the
	// empty directory dir. Package zone supplies it; only for zone sources.
	Fill func(ctx context.Context, dir string) error
}

// publishWait is how long a build waits for others to put their image in
// place, each of which takes as long as the disk needs to write it.
const publishWait = 10 * time.Minute

// Build makes a new version of an image. It is seen by others only once it is
// complete, read-only and on disk; on error and when ctx ends nothing stays.
// progress gets a line for each step and may be nil.
func (s *Store) Build(ctx context.Context, spec BuildSpec, progress func(line string)) (Image, error) {
	if progress == nil {
		progress = func(string) {}
	}
	if err := spec.Check(); err != nil {
		return Image{}, err
	}
	if spec.Source.Kind == SourceZone && spec.Fill == nil {
		return Image{}, errdefs.New(errdefs.Failed, "build image "+spec.Name, "nothing gives the files of zone %s", spec.Source.Arg)
	}
	w, err := s.begin("unfinished build of image " + spec.Name)
	if err != nil {
		return Image{}, err
	}
	img, err := s.build(ctx, w, spec, progress)
	if endErr := w.end(ctx); endErr != nil && err != nil {
		err = errors.Join(err, endErr) // an image in place is not spoilt by it
	}
	if err != nil {
		return Image{}, fmt.Errorf("build image %s: %w", spec.Name, err)
	}
	return img, nil
}

// Check finds mistakes that need no look at the machine. Build does it too.
func (spec BuildSpec) Check() error {
	if err := checkName(spec.Name); err != nil {
		return err
	}
	if spec.Source.Kind != SourceDebian && (len(spec.Include) > 0 || spec.Mirror != "" || spec.SuiteOnly) {
		return errdefs.New(errdefs.Usage, "build image "+spec.Name, "--include, --mirror and --suite-only need --from debian:SUITE")
	}
	if spec.Mirror != "" {
		if err := checkMirror(spec.Mirror); err != nil {
			return err
		}
	}
	return checkPackages(spec.Include)
}

func (s *Store) build(ctx context.Context, w *work, spec BuildSpec, progress func(string)) (Image, error) {
	if err := s.Pool.Create(ctx, w.dataset()); err != nil {
		return Image{}, err
	}
	dir := s.Pool.Path(w.dataset())
	if err := s.fill(ctx, spec, dir, progress); err != nil {
		return Image{}, s.explainFull(ctx, err)
	}
	progress("inspect")
	img, err := finish(filepath.Join(dir, rootName), spec)
	if err != nil {
		return Image{}, err
	}
	progress("write to disk")
	return s.publish(ctx, w, img)
}

// fill makes dir/root from the source.
func (s *Store) fill(ctx context.Context, spec BuildSpec, dir string, progress func(string)) error {
	root, scratch := filepath.Join(dir, rootName), filepath.Join(dir, "scratch")
	for _, d := range []string{root, scratch} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	var err error
	switch spec.Source.Kind {
	case SourceDebian:
		err = s.bootstrapDebian(ctx, spec, root, scratch, progress)
	case SourceTar:
		err = s.unpackTar(ctx, spec.Source.Arg, root, progress)
	case SourceZone:
		progress("copy zone " + spec.Source.Arg)
		err = spec.Fill(ctx, root)
	default:
		err = errdefs.New(errdefs.Usage, "--from "+spec.Source.String(), "unknown source; allowed: %s", allowedSources)
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(scratch)
}

// finish makes a filled root into that of an image and describes it.
func finish(root string, spec BuildSpec) (Image, error) {
	r, err := host.OpenRoot(root)
	if err != nil {
		return Image{}, err
	}
	defer r.Close()
	if err := checkRoot(r, spec.Source); err != nil {
		return Image{}, err
	}
	if err := resetIdentity(r); err != nil {
		return Image{}, fmt.Errorf("reset identity: %w", err)
	}
	img, err := inspect(r)
	if err != nil {
		return Image{}, fmt.Errorf("inspect: %w", err)
	}
	if img.Size, err = sizeOf(root); err != nil {
		return Image{}, fmt.Errorf("inspect: %w", err)
	}
	img.Schema, img.Name, img.UUID = Schema, spec.Name, host.NewUUID()
	img.Source, img.SuiteOnly = spec.Source.String(), spec.SuiteOnly
	img.Created = time.Now().UTC().Truncate(time.Second)
	return img, nil
}

// publish gives the image its version and puts it in place. Builders of one
// pool take turns, so that the version written inside is the one in the name.
func (s *Store) publish(ctx context.Context, w *work, img Image) (Image, error) {
	lock, err := host.WaitLock(ctx, filepath.Join(s.Pool.Path(tmpDir), "images.lock"), publishWait)
	if errors.Is(err, host.ErrLocked) {
		return Image{}, errdefs.New(errdefs.Busy, "put the image in place", "other builds have kept the images locked for %s", publishWait)
	}
	if err != nil {
		return Image{}, err
	}
	defer lock.Unlock()
	if img.Version, err = s.nextVersion(img.Name); err != nil {
		return Image{}, err
	}
	if err := host.WriteJSON(filepath.Join(s.Pool.Path(w.dataset()), metaFile), img, false); err != nil {
		return Image{}, err
	}
	if err := s.Pool.Rename(ctx, w.dataset(), w.staged()); err != nil {
		return Image{}, err
	}
	if err := s.Pool.SetReadOnly(ctx, w.staged(), true); err != nil {
		return Image{}, err
	}
	if err := s.Pool.Sync(ctx); err != nil {
		return Image{}, err
	}
	if err := s.Pool.Rename(ctx, w.staged(), s.Dataset(img)); err != nil {
		return Image{}, err
	}
	ctx = context.WithoutCancel(ctx) // it is in place: too late to be cancelled
	if err := s.Pool.Sync(ctx); err != nil {
		return Image{}, errors.Join(err, s.Pool.Rename(ctx, s.Dataset(img), w.staged()))
	}
	return img, nil
}

// nextVersion is one more than the highest there is, readable or not.
func (s *Store) nextVersion(name string) (int, error) {
	entries, err := os.ReadDir(s.Pool.Path(imagesDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	next := 1
	for _, e := range entries {
		if n, v, ok := splitDataset(e.Name()); ok && n == name {
			next = max(next, v+1)
		}
	}
	return next, nil
}

// fullBelow is how little room makes a failed build a full pool: the programs
// that fill an image do not tell.
const fullBelow = 16 << 20

func (s *Store) explainFull(ctx context.Context, err error) error {
	space, spaceErr := s.Pool.Space(ctx)
	if ctx.Err() != nil || spaceErr != nil || (space.Free >= fullBelow && !host.NoSpace(err)) {
		return err
	}
	name := s.Pool.Info().Name
	return &errdefs.Error{
		Kind: errdefs.Failed, What: "build image", Why: fmt.Sprintf("pool %s is full (%d of %d bytes free)", name, space.Free, space.Size),
		Err: err, Hint: "zone pool status " + name,
	}
}
