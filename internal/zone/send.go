package zone

import (
	"context"
	"io"
	"os"
	"path"
	"time"

	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/image"
	"zone/internal/storage"
)

// The ways in which a dataset is written into a stream.
const (
	encodingBtrfs = "btrfs" // as btrfs send writes it, for pools of that kind only
	encodingTar   = "tar"
)

// The kinds of datasets in a stream.
const (
	partImage = "image"
	partLayer = "layer"
	partZone  = "zone"
)

// streamHeader says what a stream holds, before any of it comes.
type streamHeader struct {
	Schema   int          `json:"schema"`
	Zone     string       `json:"zone"`
	UUID     string       `json:"uuid"`
	Snapshot string       `json:"snapshot,omitempty"`
	Backend  string       `json:"backend"`
	Sent     time.Time    `json:"sent"`
	Record   Record       `json:"record"`
	Config   string       `json:"config"`          // TOML
	Image    *image.Image `json:"image,omitempty"` // of a sparse zone
	Parts    []streamPart `json:"parts"`
}

// streamPart is one dataset of a stream: the image, the layers from the lowest
// up, the zone's own.
type streamPart struct {
	Kind     string `json:"kind"`
	ID       string `json:"id"` // image reference, layer or zone
	Encoding string `json:"encoding"`
}

// SendSpec says what to send.
type SendSpec struct {
	Zone     string
	Snapshot string // empty: the root as it is now
	Portable bool   // in a form that pools of every kind can receive
}

// Send writes a zone's root with all it stands on, its configuration and its
// identity as one stream, which Receive reads. The zone may be running.
func (s *Service) Send(ctx context.Context, c SendSpec, w io.Writer) (err error) {
	at, err := s.Find(ctx, c.Zone)
	if err != nil {
		return err
	}
	from := at.active()
	if c.Snapshot != "" {
		if _, err := s.findSnapshot(ctx, c.Zone, c.Snapshot); err != nil {
			return err
		}
		from = at.dataset("@" + c.Snapshot)
	}
	j, err := s.begin(opSend, at.Pool.Info().Name, c.Zone)
	if err != nil {
		return err
	}
	tmp := path.Join("tmp", j.ID)
	defer func() {
		undo := s.removeTree(context.WithoutCancel(ctx), at.Pool, tmp)
		j.endUnless(undo)
		if err == nil {
			err = undo
		}
	}()
	// While this copy stands in tmp, its image and layers count as used.
	own := path.Join(tmp, "active")
	if err := at.Pool.Snapshot(ctx, from, own, true); err != nil {
		return explainFull("send "+c.Zone, at.Pool, err)
	}
	h, err := s.streamOf(ctx, at, own, c)
	if err != nil {
		return err
	}
	out, err := newStreamWriter(w, h)
	if err != nil {
		return err
	}
	for i, p := range h.Parts {
		err := out.part(i, func(w io.Writer) error { return s.sendPart(ctx, at.Pool, p, own, tmp, w) })
		if err != nil {
			return err
		}
	}
	return out.end()
}

// streamOf describes the stream of the root in the dataset own.
func (s *Service) streamOf(ctx context.Context, at Place, own string, c SendSpec) (streamHeader, error) {
	dir := at.Pool.Path(own)
	r, err := readRecord(dir)
	if err != nil {
		return streamHeader{}, err
	}
	z, err := readConfig(dir)
	if err != nil {
		return streamHeader{}, err
	}
	h := streamHeader{
		Schema: 1, Zone: r.Name, UUID: r.UUID, Snapshot: c.Snapshot, Backend: at.Pool.Info().Backend,
		Sent: time.Now().UTC(), Record: r, Config: string(config.Render(z)),
	}
	encoding := encodingTar
	if h.Backend == encodingBtrfs && !c.Portable {
		encoding = encodingBtrfs
	}
	if r.Root == Sparse {
		img, err := s.Images(at.Pool).Get(ctx, r.Image)
		if err != nil {
			return h, err
		}
		h.Image = &img
		h.Parts = append(h.Parts, streamPart{partImage, r.Image, encoding})
		for i := len(r.Layers) - 1; i >= 0; i-- {
			h.Parts = append(h.Parts, streamPart{partLayer, r.Layers[i], encoding})
		}
	}
	h.Parts = append(h.Parts, streamPart{partZone, r.Name, encoding})
	return h, nil
}

// sendPart writes one dataset. btrfs writes the name of what it sends into the
// stream: it is "active" for all of them.
func (s *Service) sendPart(ctx context.Context, pool storage.Pool, p streamPart, own, tmp string, w io.Writer) error {
	dataset := own
	switch p.Kind {
	case partImage:
		dataset = path.Join("images", p.ID)
	case partLayer:
		dataset = path.Join("layers", p.ID)
	}
	if p.Encoding == encodingTar {
		_, err := s.Runner.Run(ctx, host.Cmd{Name: "tar", Args: tarOut(pool.Path(dataset)), Stdout: w})
		return err
	}
	if dataset != own {
		copied := path.Join(tmp, "."+p.Kind, "active")
		if err := pool.Snapshot(ctx, dataset, copied, true); err != nil {
			return err
		}
		defer func() { _ = pool.Delete(context.WithoutCancel(ctx), copied) }() // Send clears away what stays
		dataset = copied
	}
	// The standard output of a program must be a pipe here: btrfs splices.
	_, err := s.Runner.Run(ctx, host.Cmd{Name: "btrfs", Args: []string{"send", "--quiet", pool.Path(dataset)}, Stdout: w})
	if host.IsMissing(err) {
		return errdefs.New(errdefs.NotSupported, "send "+p.Kind+" "+p.ID, "the program btrfs is missing").
			WithHint("apt-get install btrfs-progs")
	}
	return err
}

func tarOut(dir string) []string {
	return []string{
		"--create", "--file=-", "--directory=" + dir, "--format=posix", "--sparse", "--numeric-owner", "--one-file-system",
		"--acls", "--xattrs", "--xattrs-include=*", ".",
	}
}

func tarIn(dir string) []string {
	return []string{
		"--extract", "--file=-", "--directory=" + dir, "--numeric-owner", "--same-owner", "--preserve-permissions",
		"--delay-directory-restore", "--acls", "--xattrs", "--xattrs-include=*",
	}
}

// mendSend clears away what a sender left.
func (s *Service) mendSend(ctx context.Context, j *journal) (string, error) {
	pool, err := s.Pools.Open(ctx, j.Pool)
	if errdefs.Is(err, errdefs.NotFound) {
		return poolGone, nil
	}
	if err != nil {
		return "", err
	}
	return "removed the copy it was sending; the zone was not touched", s.removeTree(ctx, pool, path.Join("tmp", j.ID))
}

// plainDirs refuses a received dataset in which something else stands where
// the program expects directories and files of its own: it opens them by path.
func plainDirs(dir string, needed ...string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	dirs := map[string]bool{}
	for _, e := range entries {
		if !e.IsDir() && !e.Type().IsRegular() {
			return badStream("it holds something else than files and directories beside a root")
		}
		dirs[e.Name()] = e.IsDir()
	}
	for _, n := range needed {
		if !dirs[n] {
			return badStream("a part of it has no directory " + n)
		}
	}
	return nil
}
