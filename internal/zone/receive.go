package zone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/image"
	"zone/internal/storage"
)

// ReceiveSpec says where a stream goes.
type ReceiveSpec struct {
	Zone string // name to give it; empty: that it had
	Pool string // empty for the default pool
}

// Receive makes a zone of a stream that Send wrote, and returns its name. What
// it stands on is taken from the pool where it is there already. Nothing is
// put in place before the whole stream has come and its checksums match. The
// zone keeps its identity, unless this home has a zone with the same one: then
// it gets one of its own, as a clone does.
func (s *Service) Receive(ctx context.Context, c ReceiveSpec, r io.Reader) (name string, err error) {
	if c.Zone != "" {
		if err := config.ValidName(c.Zone); err != nil {
			return "", err
		}
	}
	var h streamHeader
	in, err := newStreamReader(r, &h)
	if err != nil {
		return "", err
	}
	if err := h.check(); err != nil {
		return "", err
	}
	if name = c.Zone; name == "" {
		name = h.Zone
	}
	pool, err := s.Pool(ctx, c.Pool)
	if err != nil {
		return "", err
	}
	if err := h.fits(pool); err != nil {
		return "", err
	}
	keep, err := host.LockShared(ctx, s.imagesLock(pool), s.patience())
	if errors.Is(err, host.ErrLocked) {
		return "", errdefs.New(errdefs.Busy, opReceive+" "+name, "an image of pool %s is being deleted", pool.Info().Name)
	}
	if err != nil {
		return "", err
	}
	defer keep.Unlock()
	l, err := s.lock(ctx, opReceive, name)
	if err != nil {
		return "", err
	}
	defer l.unlock()
	if err := s.free(ctx, opReceive, name); err != nil {
		return "", err
	}
	return name, s.receive(ctx, pool, name, h, in)
}

func (s *Service) receive(ctx context.Context, pool storage.Pool, name string, h streamHeader, in *streamReader) (err error) {
	j, err := s.begin(opReceive, pool.Info().Name, name)
	if err != nil {
		return err
	}
	a := &arrival{s: s, pool: pool, tmp: path.Join("tmp", j.ID), name: name, streamHeader: h}
	defer func() {
		if err == nil {
			j.end()
			return
		}
		clean := context.WithoutCancel(ctx)
		undo := s.removeArrival(clean, pool, a.tmp)
		s.tidyLayers(clean, pool)
		j.endUnless(undo)
		err = errors.Join(explainFull(opReceive+" "+name, pool, err), undo)
	}()
	for i, p := range h.Parts {
		r, err := in.part(i)
		if err != nil {
			return err
		}
		if err := a.receivePart(ctx, i, p, r); err != nil {
			return err
		}
	}
	if err := in.end(); err != nil {
		return err
	}
	if err := j.step("place", ""); err != nil {
		return err
	}
	return a.place(ctx)
}

var (
	layerForm = regexp.MustCompile(`^[0-9a-f]{12}$`)
	uuidForm  = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
)

// check refuses headers that no version of this program writes. What it lets
// through may be used in paths.
func (h streamHeader) check() error {
	r := h.Record
	if h.Schema != 1 || r.Schema != 1 {
		return errdefs.New(errdefs.NotSupported, "read the stream", "it was written by another version (schema %d, record %d)", h.Schema, r.Schema)
	}
	want := []streamPart{}
	if r.Root == Sparse {
		want = append(want, streamPart{Kind: partImage, ID: r.Image})
		for i := len(r.Layers) - 1; i >= 0; i-- {
			want = append(want, streamPart{Kind: partLayer, ID: r.Layers[i]})
		}
	}
	want = append(want, streamPart{Kind: partZone, ID: r.Name})
	sound := len(h.Parts) == len(want) && len(r.Layers) <= maxLayers && (r.Root == Sparse || r.Root == Whole) &&
		config.ValidName(h.Zone) == nil && r.Name == h.Zone && uuidForm.MatchString(r.UUID)
	if _, version, err := image.ParseRef(r.Image); err != nil || version == 0 {
		sound = false
	}
	if r.Root == Sparse && (h.Image == nil || h.Image.Ref() != r.Image || !uuidForm.MatchString(h.Image.UUID)) {
		sound = false
	}
	sound = sound && (r.BE == nil || validBEName(r.BE.Name) == nil)
	for _, l := range r.Layers {
		sound = sound && layerForm.MatchString(l)
	}
	for i := 0; sound && i < len(want); i++ {
		p := h.Parts[i]
		sound = p.Kind == want[i].Kind && p.ID == want[i].ID && (p.Encoding == encodingTar || p.Encoding == encodingBtrfs)
	}
	if !sound {
		return badStream("its header is damaged")
	}
	z, err := config.Parse("the stream's configuration", []byte(h.Config))
	if err != nil {
		return err
	}
	return config.Validate(z)
}

// fits refuses streams that this kind of pool cannot take.
func (h streamHeader) fits(pool storage.Pool) error {
	for _, p := range h.Parts {
		if p.Encoding == encodingBtrfs && pool.Info().Backend != encodingBtrfs {
			return errdefs.New(errdefs.NotSupported, "receive "+h.Zone, "the stream comes from a btrfs pool, and %s is of kind %s",
				pool.Info().Name, pool.Info().Backend).WithHint("zone send --portable %s", h.Zone)
		}
	}
	return nil
}

// arrival is a zone that is being received below tmp.
type arrival struct {
	s    *Service
	pool storage.Pool
	tmp  string
	name string
	streamHeader
}

// dir returns where a part stands until it is put in place. No zone's name
// begins with a dot.
func (a *arrival) dir(i int) string { return path.Join(a.tmp, fmt.Sprintf(".%d", i)) }

// receivePart reads one part to its end, and keeps it unless the pool has it.
func (a *arrival) receivePart(ctx context.Context, i int, p streamPart, r *partReader) error {
	have, err := a.have(ctx, p)
	if err != nil {
		return err
	}
	if have {
		return r.finish()
	}
	return a.unpack(ctx, i, p, a.Record.Root, r, r.finish)
}

// unpack makes a dataset of a part. finish reads the part to its end and tells
// whether it was whole.
func (a *arrival) unpack(ctx context.Context, i int, p streamPart, root string, r io.Reader, finish func() error) (err error) {
	dataset := path.Join(a.dir(i), "active")
	cmd := host.Cmd{Name: "tar", Args: tarIn(a.pool.Path(dataset)), Stdin: r}
	if p.Encoding == encodingBtrfs {
		cmd.Name, cmd.Args = "btrfs", []string{"receive", "--quiet", "--chroot", a.pool.Path(a.dir(i))}
		err = os.MkdirAll(a.pool.Path(a.dir(i)), 0o700)
	} else {
		err = a.pool.Create(ctx, dataset)
	}
	if err != nil {
		return err
	}
	_, ran := a.s.Runner.Run(ctx, cmd)
	if host.IsMissing(ran) {
		return errdefs.New(errdefs.NotSupported, "receive "+a.name, "the program %s is missing", cmd.Name).
			WithHint("apt-get install btrfs-progs tar")
	}
	// Damage of the stream explains more than what a program says of it.
	if err := finish(); err != nil {
		return err
	}
	if ran != nil {
		return ran
	}
	if len(names(a.pool.Path(a.dir(i)))) != 1 {
		return badStream("a part of it is more than one dataset")
	}
	if p.Kind == partImage || root == Whole {
		return plainDirs(a.pool.Path(dataset), "root")
	}
	return plainDirs(a.pool.Path(dataset), "upper", "work")
}

// have reports whether the pool holds an image or layer already.
func (a *arrival) have(ctx context.Context, p streamPart) (bool, error) {
	switch p.Kind {
	case partImage:
		ref, err := a.imageHere(ctx)
		return ref != "", err
	case partLayer:
		_, err := os.Stat(a.pool.Path(path.Join("layers", p.ID)))
		return err == nil, nil
	}
	return false, nil
}

// imageHere returns the reference under which the pool has the image, or "".
func (a *arrival) imageHere(ctx context.Context) (string, error) {
	list, err := a.s.Images(a.pool).List(ctx)
	for _, img := range list {
		if img.UUID == a.Image.UUID {
			return img.Ref(), nil
		}
	}
	return "", err
}

// place moves everything from tmp to where it belongs, the zone last. Cut off,
// it leaves layers that nobody uses, which are dropped, and perhaps the image.
func (a *arrival) place(ctx context.Context) error {
	l, err := a.s.lockLayers(ctx, opReceive+" "+a.name, a.pool)
	if err != nil {
		return err
	}
	defer l.Unlock()
	r := a.Record
	for i, p := range a.Parts {
		dataset := path.Join(a.dir(i), "active")
		switch p.Kind {
		case partImage:
			r.Image, err = a.placeImage(ctx, dataset)
		case partLayer:
			err = a.placeLayer(ctx, dataset, p.ID)
		case partZone:
			err = a.placeZone(ctx, dataset, r)
		}
		if err != nil {
			return err
		}
	}
	return a.s.removeArrival(ctx, a.pool, a.tmp)
}

func (a *arrival) placeLayer(ctx context.Context, dataset, id string) error {
	to := path.Join("layers", id)
	if _, err := os.Stat(a.pool.Path(to)); err == nil {
		return nil
	}
	if _, err := os.Stat(a.pool.Path(dataset)); err != nil {
		return errdefs.New(errdefs.Busy, opReceive+" "+a.name, "layer %s was deleted meanwhile; receive it again", id)
	}
	if err := a.pool.SetReadOnly(ctx, dataset, true); err != nil {
		return err
	}
	return a.pool.Rename(ctx, dataset, to)
}

// placeImage puts the image in place under its own reference or, where another
// has that, under the next version that is free.
func (a *arrival) placeImage(ctx context.Context, dataset string) (ref string, err error) {
	if ref, err = a.imageHere(ctx); ref != "" {
		return ref, nil
	}
	if err != nil {
		return "", err
	}
	img := *a.Image
	for {
		if _, err := os.Lstat(a.pool.Path(path.Join("images", img.Ref()))); err != nil {
			break
		}
		img.Version++
	}
	if err := a.pool.SetReadOnly(ctx, dataset, false); err != nil {
		return "", err
	}
	img.Schema = image.Schema
	if err := host.WriteJSON(filepath.Join(a.pool.Path(dataset), "image.json"), img, true); err != nil {
		return "", err
	}
	if err := a.pool.SetReadOnly(ctx, dataset, true); err != nil {
		return "", err
	}
	return img.Ref(), a.pool.Rename(ctx, dataset, path.Join("images", img.Ref()))
}

// placeZone gives the received root its record and configuration and makes it
// a zone. Addresses are settled under their lock, until the zone is in place.
func (a *arrival) placeZone(ctx context.Context, received string, r Record) error {
	dataset := path.Join(a.tmp, a.name, "active")
	// A copy: what btrfs received is marked so, and only the copy may change.
	if err := a.pool.Snapshot(ctx, received, dataset, false); err != nil {
		return err
	}
	if err := a.pool.Delete(ctx, received); err != nil {
		return err
	}
	k, err := host.WaitLock(ctx, filepath.Join(a.s.Run, "locks", "addresses"), a.s.patience())
	if err != nil {
		return err
	}
	defer k.Unlock()
	if err := a.identify(ctx, dataset, r); err != nil {
		return err
	}
	if err := os.MkdirAll(a.pool.Path("zones"), 0o700); err != nil {
		return err
	}
	return host.RenameNew(a.pool.Path(path.Join(a.tmp, a.name)), a.pool.Path(path.Join("zones", a.name)))
}

func (a *arrival) identify(ctx context.Context, dataset string, r Record) error {
	z, err := config.Parse("the stream's configuration", []byte(a.Config))
	if err != nil {
		return err
	}
	used, twin, err := a.s.neighbours(ctx, r.UUID)
	if err != nil {
		return err
	}
	if r.Address, err = a.s.addressFor(r.Address, used); err != nil {
		return err
	}
	renamed := r.Name != a.name
	if twin != "" {
		a.s.Note("zone %s has the identity in the stream; %s gets one of its own", twin, a.name)
		r.UUID, r.ClonedOf, z.Hostname = host.NewUUID(), twin, ""
	}
	r.Name, r.Next, r.Rewritten, r.Taken = a.name, "", "", nil
	dir := a.pool.Path(dataset)
	if twin != "" || renamed {
		w, err := openWritable(a.pool, dir, r)
		if err != nil {
			return err
		}
		defer w.close()
		if err := rename(w, r, z, twin != ""); err != nil {
			return err
		}
	}
	if err := writeConfig(dir, z); err != nil {
		return err
	}
	return writeRecord(dir, r)
}

// rename tells the root its new name, and gives it a new identity if anew is
// set.
func rename(w *writable, r Record, z config.Zone, anew bool) error {
	if anew {
		return resetIdentity(w, r, z)
	}
	name := z.WithDefaults(r.Name).Hostname
	if err := w.writeFile("/etc/hostname", []byte(name+"\n"), 0o644); err != nil {
		return err
	}
	return writeHosts(w, name)
}

// neighbours returns the addresses in use and the zone that has the UUID.
func (s *Service) neighbours(ctx context.Context, uuid string) (used []netip.Addr, twin string, err error) {
	places, err := s.Places(ctx)
	if err != nil {
		return nil, "", err
	}
	for _, p := range places {
		r, err := readRecord(p.activePath(""))
		if err != nil {
			continue // its address and identity are lost with its record
		}
		used = append(used, r.Address)
		if r.UUID == uuid {
			twin = p.Name
		}
	}
	return used, twin, nil
}

// addressFor returns the address a zone had, if it is of this host's network
// and free, and another one otherwise.
func (s *Service) addressFor(had netip.Addr, used []netip.Addr) (netip.Addr, error) {
	free := s.Network.Usable(had)
	for _, u := range used {
		free = free && u != had
	}
	if free {
		return had, nil
	}
	return s.Network.Allocate(used)
}

// removeArrival deletes what was received so far. A part that is no dataset of
// the expected name goes with all there is in it.
func (s *Service) removeArrival(ctx context.Context, pool storage.Pool, tmp string) error {
	for _, d := range names(pool.Path(tmp)) {
		if !strings.HasPrefix(d, ".") {
			continue
		}
		for _, e := range names(pool.Path(path.Join(tmp, d))) {
			part := path.Join(tmp, d, e)
			if err := pool.Delete(ctx, part); err == nil {
				continue
			}
			if err := os.RemoveAll(pool.Path(part)); err != nil {
				return err
			}
		}
	}
	return s.removeUnplaced(ctx, pool, tmp)
}

// names lists a directory; one that is not there is empty.
func names(dir string) []string {
	entries, _ := os.ReadDir(dir)
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func (s *Service) mendReceive(ctx context.Context, j *journal) (string, error) {
	pool, err := s.Pools.Open(ctx, j.Pool)
	if errdefs.Is(err, errdefs.NotFound) {
		return poolGone, nil
	}
	if err != nil {
		return "", err
	}
	if err := s.removeArrival(ctx, pool, path.Join("tmp", j.ID)); err != nil {
		return "", err
	}
	s.tidyLayers(ctx, pool)
	if _, err := os.Stat((Place{pool, j.Zones[0]}).dir()); err == nil {
		return "it was complete", nil
	}
	return "removed what had come; nothing was created", nil
}
