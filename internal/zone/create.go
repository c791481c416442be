package zone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/image"
	"zone/internal/storage"
)

// CreateSpec says what to create.
type CreateSpec struct {
	Name   string
	Image  string // NAME or NAME@VERSION; empty when the pool has just one
	Pool   string // empty for the default pool
	Config config.Zone
}

// Create makes a zone from an image: configured, then installed.
func (s *Service) Create(ctx context.Context, c CreateSpec) error {
	if err := config.ValidName(c.Name); err != nil {
		return err
	}
	if err := config.Validate(c.Config); err != nil {
		return err
	}
	pool, err := s.Pool(ctx, c.Pool)
	if err != nil {
		return err
	}
	keep, err := host.LockShared(ctx, s.imagesLock(pool), s.patience())
	if errors.Is(err, host.ErrLocked) {
		return errdefs.New(errdefs.Busy, opCreate+" "+c.Name, "an image of pool %s is being deleted", pool.Info().Name)
	}
	if err != nil {
		return err
	}
	defer keep.Unlock()
	img, err := s.chooseImage(ctx, pool, c.Image)
	if err != nil {
		return err
	}
	l, err := s.lock(ctx, opCreate, c.Name)
	if err != nil {
		return err
	}
	defer l.unlock()
	return s.make(ctx, opCreate, pool, []string{c.Name}, func(ctx context.Context, b birth) error {
		r := b.record
		r.Image, r.Root = img.Ref(), c.Config.WithDefaults(c.Name).Root
		from := path.Join("images", r.Image)
		return s.build(ctx, pool, b.dataset, from, r, c.Config)
	})
}

func (s *Service) imagesLock(pool storage.Pool) string { return s.poolLock(pool, "images") }

// LockImages keeps zones from being made of the images of a pool, so that one
// can be deleted that has no users.
func (s *Service) LockImages(ctx context.Context, pool storage.Pool) (release func(), err error) {
	l, err := host.WaitLock(ctx, s.imagesLock(pool), s.patience())
	if errors.Is(err, host.ErrLocked) {
		return nil, errdefs.New(errdefs.Busy, "images of pool "+pool.Info().Name, "a zone is being created")
	}
	if err != nil {
		return nil, err
	}
	return l.Unlock, nil
}

func (s *Service) chooseImage(ctx context.Context, pool storage.Pool, ref string) (image.Image, error) {
	images := s.Images(pool)
	if ref != "" {
		return images.Get(ctx, ref)
	}
	list, err := images.List(ctx)
	if err != nil {
		return image.Image{}, err
	}
	names := map[string]bool{}
	for _, i := range list {
		names[i.Name] = true
	}
	switch len(names) {
	case 0:
		return image.Image{}, errdefs.New(errdefs.NotFound, "choose an image", "pool %s has none", pool.Info().Name).
			WithHint("zone image build debian12 --from debian:bookworm")
	case 1:
		return images.Get(ctx, list[0].Name)
	}
	return image.Image{}, errdefs.New(errdefs.Usage, "choose an image", "there are several").
		WithHint("add --image NAME; zone image list shows them")
}

// Clone makes copies of a zone, which may be running. A sparse zone's own
// files become a layer that all copies stand on, so they share disk and page
// cache; a whole root is copied on write.
func (s *Service) Clone(ctx context.Context, source string, names []string) error {
	if len(names) == 0 {
		return errdefs.New(errdefs.Usage, "clone "+source, "no name for the clone")
	}
	for i, n := range names {
		if err := config.ValidName(n); err != nil {
			return err
		}
		if slices.Contains(names[:i], n) {
			return errdefs.New(errdefs.Usage, "clone "+source, "%s is named twice", n)
		}
	}
	// All locks at once and in order, and held to the end: the source's layers
	// must stay what they are, and nobody may wait for a zone while holding
	// the layers.
	l, err := s.lock(ctx, opClone, append([]string{source}, names...)...)
	if err != nil {
		return err
	}
	defer l.unlock()
	at, err := s.Find(ctx, source)
	if err != nil {
		return err
	}
	r, err := readRecord(at.activePath(""))
	if err == nil {
		longest := slices.MaxFunc(names, func(a, b string) int { return len(a) - len(b) })
		err = checkLayers(at, r, longest)
	}
	var z config.Zone
	if err == nil {
		z, err = readConfig(at.activePath(""))
	}
	if err != nil {
		return err
	}
	z.Hostname, z.HostID = "", "" // a clone is somebody else
	return s.cloneFrom(ctx, at, r, z, names)
}

func (s *Service) cloneFrom(ctx context.Context, at Place, src Record, z config.Zone, names []string) error {
	from := at.active()
	l, err := s.lockLayers(ctx, "clone "+at.Name, at.Pool)
	if err != nil {
		return err
	}
	defer l.Unlock()
	layers := src.Layers
	if src.Root == Sparse && !onlyIdentity(at.activePath("upper")) {
		layer := newID()
		from = path.Join("layers", layer)
		layers = append([]string{layer}, layers...)
	}
	err = s.make(ctx, opClone, at.Pool, names, func(ctx context.Context, b birth) error {
		r := b.record
		r.Image, r.Root, r.Layers, r.ClonedOf = src.Image, src.Root, layers, at.Name
		return s.build(ctx, at.Pool, b.dataset, from, r, z)
	}, func(ctx context.Context) error {
		if from == at.active() {
			return nil
		}
		return at.Pool.Snapshot(ctx, at.active(), from, true)
	})
	if err != nil && from != at.active() {
		if left := s.dropLayersLocked(context.WithoutCancel(ctx), at.Pool); left != nil {
			s.Note("the layer made for the clones stays for now: %v", left)
		}
	}
	return err
}

// birth is one zone about to be made.
type birth struct {
	dataset string // where to build it
	record  Record // name, uuid, address and creation time are filled in
}

// makeWorkers bounds the datasets made at once: snapshots in different
// directories share the commit of the file system.
const makeWorkers = 16

// make, called with the locks of the zones, builds them under tmp and moves them into place when all are whole.
// first runs before any is built. Interrupted at any moment it leaves nothing
// but whole zones and a journal entry that explains the rest.
func (s *Service) make(ctx context.Context, op string, pool storage.Pool, names []string,
	build func(context.Context, birth) error, first ...func(context.Context) error,
) (err error) {
	for _, n := range names {
		if err := s.free(ctx, op, n); err != nil {
			return err
		}
	}
	births, release, err := s.births(ctx, names)
	if err != nil {
		return err
	}
	defer release()
	j, err := s.begin(op, pool.Info().Name, names...)
	if err != nil {
		return err
	}
	tmp := path.Join("tmp", j.ID)
	var placed []string
	defer func() {
		if err == nil {
			j.end()
			return
		}
		clean := context.WithoutCancel(ctx)
		var undo error
		for _, n := range placed {
			undo = errors.Join(undo, s.removeTree(clean, pool, path.Join("zones", n)))
		}
		undo = errors.Join(undo, s.removeUnplaced(clean, pool, tmp))
		j.endUnless(undo)
		err = errors.Join(err, undo)
	}()
	for _, f := range first {
		if err := f(ctx); err != nil {
			return explainFull(op, pool, err)
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(makeWorkers)
	for _, b := range births {
		b.dataset = path.Join(tmp, b.record.Name, "active")
		g.Go(func() error { return build(gctx, b) })
	}
	if err := g.Wait(); err != nil {
		return explainFull(op, pool, err)
	}
	return s.place(j, pool, tmp, names, &placed)
}

func (s *Service) place(j *journal, pool storage.Pool, tmp string, names []string, placed *[]string) error {
	if err := j.step("place", ""); err != nil {
		return err
	}
	if err := os.MkdirAll(pool.Path("zones"), 0o700); err != nil {
		return err
	}
	for _, n := range names {
		if err := host.RenameNew(pool.Path(path.Join(tmp, n)), pool.Path(path.Join("zones", n))); err != nil {
			return err
		}
		*placed = append(*placed, n)
	}
	return os.Remove(pool.Path(tmp))
}

// free refuses a name that is taken in any pool.
func (s *Service) free(ctx context.Context, op, name string) error {
	at, err := s.Find(ctx, name)
	if errdefs.Is(err, errdefs.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return errdefs.New(errdefs.WrongState, op+" "+name, "a zone of this name exists already in pool %s (%s)",
		at.Pool.Info().Name, s.status(at).State).WithHint("zone list %s", name)
}

// births prepares identities. Addresses stay reserved until release is called,
// by when the zones that carry them are in place.
func (s *Service) births(ctx context.Context, names []string) (list []birth, release func(), err error) {
	l, err := host.WaitLock(ctx, filepath.Join(s.Run, "locks", "addresses"), s.patience())
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			l.Unlock()
		}
	}()
	used, err := s.usedAddresses(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, n := range names {
		addr, err := s.Network.Allocate(used)
		if err != nil {
			return nil, nil, err
		}
		used = append(used, addr)
		list = append(list, birth{record: Record{
			Name: n, UUID: host.NewUUID(), Address: addr, Created: time.Now().UTC().Truncate(time.Second),
		}})
	}
	return list, l.Unlock, nil
}

func (s *Service) usedAddresses(ctx context.Context) ([]netip.Addr, error) {
	places, err := s.Places(ctx)
	if err != nil {
		return nil, err
	}
	var used []netip.Addr
	for _, p := range places {
		if r, err := readRecord(p.activePath("")); err == nil {
			used = append(used, r.Address)
		}
	}
	return used, nil
}

// build makes one zone's dataset: empty with an upper directory for a sparse
// root, a copy of from for a whole one.
func (s *Service) build(ctx context.Context, pool storage.Pool, dataset, from string, r Record, z config.Zone) error {
	dir := pool.Path(dataset)
	if r.Root == Sparse {
		if err := pool.Create(ctx, dataset); err != nil {
			return err
		}
		for _, d := range []string{"upper", "work"} {
			if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
				return err
			}
		}
	} else {
		if err := pool.Snapshot(ctx, from, dataset, false); err != nil {
			return err
		}
		if err := os.Remove(filepath.Join(dir, "image.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	w, err := openWritable(pool, dir, r)
	if err != nil {
		return err
	}
	defer w.close()
	if err := resetIdentity(w, r, z); err != nil {
		return err
	}
	if err := writeConfig(dir, z); err != nil {
		return err
	}
	return writeRecord(dir, r)
}

// onlyIdentity reports whether a sparse zone's own directory holds nothing
// worth sharing with a clone: only what every new zone gets.
func onlyIdentity(upper string) bool {
	root, err := host.OpenRoot(upper)
	if err != nil {
		return false
	}
	defer root.Close()
	stop := errors.New("more")
	err = filepath.WalkDir(upper, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if rel, _ := filepath.Rel(upper, p); !isIdentity(root, rel, d.Type()) {
			return stop
		}
		return nil
	})
	return err == nil
}

func isIdentity(root *host.Root, rel string, t fs.FileMode) bool {
	switch rel {
	case ".", "etc":
		return t.IsDir()
	case "etc/machine-id", "etc/hostname":
		return t.IsRegular()
	case "etc/hosts", "etc/resolv.conf":
		// Only ours: somebody's own go along to the clone.
		data, err := root.ReadFile(rel)
		return err == nil && t.IsRegular() && bytes.HasPrefix(data, []byte(writtenHeader))
	}
	return false
}

// explainFull names the pool when it has no room left.
func explainFull(op string, pool storage.Pool, err error) error {
	if !host.NoSpace(err) {
		return err
	}
	return &errdefs.Error{
		Kind: errdefs.Failed, What: op, Why: fmt.Sprintf("pool %s is full", pool.Info().Name), Err: err,
		Hint: "zone pool status " + pool.Info().Name,
	}
}
