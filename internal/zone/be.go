package zone

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/host"
)

// A boot environment is one of several roots of a zone. The one it runs from
// is its dataset "active"; the others stand beside it, each under its name
// behind bePrefix, writable and with a record of its own.
const bePrefix = "+"

// initialBE is the name of the root that a zone was made with.
const initialBE = "initial"

// maxDescription bounds the text of a boot environment, in bytes.
const maxDescription = 256

// bootEnv is what the record of a root holds of its being a boot environment.
// The name of one that is not active is that of its dataset.
type bootEnv struct {
	Name        string    `json:"name"`
	Description string    `json:"description,omitempty"`
	Created     time.Time `json:"created"`
}

// BootEnv is one line of `zone be list`.
type BootEnv struct {
	Zone        string    `json:"zone"`
	Name        string    `json:"name"`
	Active      string    `json:"active"` // N: the zone's root now; R: from its next boot; NR: both
	Created     time.Time `json:"created"`
	Used        int64     `json:"used"` // bytes that only this root holds; -1 where the pool cannot tell
	Description string    `json:"description"`
}

// BESpec says what boot environment to create.
type BESpec struct {
	Zone, Name  string
	From        string // a boot environment, or a snapshot as NAME or @NAME; empty for the active root
	Description string
	Activate    bool
}

func validBEName(name string) error {
	if config.ValidSnapshotName(name) == nil {
		return nil
	}
	err := config.ValidSnapshotName(name)
	var e *errdefs.Error
	if errors.As(err, &e) {
		e.What = fmt.Sprintf("name of a boot environment %q", name)
	}
	return err
}

func (p Place) be(name string) string { return p.dataset(bePrefix + name) }

func (p Place) hasBE(name string) bool {
	_, err := os.Stat(p.Pool.Path(p.be(name)))
	return err == nil
}

// activeBE returns what the active root is known by.
func (r Record) activeBE() bootEnv {
	if r.BE == nil {
		return bootEnv{Name: initialBE, Created: r.Created}
	}
	return *r.BE
}

// BootEnvs lists the boot environments of a zone, oldest first.
func (s *Service) BootEnvs(ctx context.Context, name string) ([]BootEnv, error) {
	at, err := s.Find(ctx, name)
	if err != nil {
		return nil, err
	}
	now, err := readRecord(at.activePath(""))
	if err != nil {
		return nil, err
	}
	list := []BootEnv{s.bootEnv(ctx, at, at.active(), now.activeBE())}
	list[0].Active = "N"
	entries, err := os.ReadDir(at.dir())
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		be, ok := strings.CutPrefix(e.Name(), bePrefix)
		if !ok {
			continue
		}
		r, err := readRecord(filepath.Join(at.dir(), e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // destroyed or renamed this moment
		}
		if err != nil {
			return nil, err
		}
		about := r.activeBE()
		about.Name = be
		list = append(list, s.bootEnv(ctx, at, at.dataset(e.Name()), about))
	}
	for i := range list {
		if list[i].Name == now.Next || now.Next == "" && i == 0 {
			list[i].Active += "R"
		}
	}
	slices.SortStableFunc(list, func(a, b BootEnv) int { return a.Created.Compare(b.Created) })
	return list, nil
}

func (s *Service) bootEnv(ctx context.Context, at Place, dataset string, about bootEnv) BootEnv {
	used, err := at.Pool.Used(ctx, dataset)
	if err != nil {
		used = -1
	}
	return BootEnv{Zone: at.Name, Name: about.Name, Created: about.Created, Used: used, Description: about.Description}
}

// CreateBE copies a root of the zone, which may be running, to a new boot
// environment.
func (s *Service) CreateBE(ctx context.Context, c BESpec) error {
	if err := validBEName(c.Name); err != nil {
		return err
	}
	if len(c.Description) > maxDescription || strings.ContainsFunc(c.Description, unicode.IsControl) {
		return errdefs.New(errdefs.Usage, "description of "+c.Name, "not allowed; allowed: one line of at most %d bytes", maxDescription)
	}
	l, err := s.lock(ctx, opBECreate, c.Zone)
	if err != nil {
		return err
	}
	defer l.unlock()
	at, err := s.Find(ctx, c.Zone)
	if err != nil {
		return err
	}
	if err := s.freeBE("create", at, c.Name); err != nil {
		return err
	}
	from, err := s.sourceOfBE(ctx, at, c.From)
	if err != nil {
		return err
	}
	if err := s.createBELocked(ctx, at, c, from); err != nil {
		return explainFull("create boot environment "+c.Name, at.Pool, err)
	}
	if c.Activate {
		_, err = s.activateLocked(ctx, at, c.Name)
	}
	return err
}

// freeBE refuses the name of a boot environment that is there.
func (s *Service) freeBE(op string, at Place, name string) error {
	taken := at.hasBE(name)
	if r, err := readRecord(at.activePath("")); err == nil {
		taken = taken || r.activeBE().Name == name
	}
	if taken {
		return errdefs.New(errdefs.WrongState, op+" boot environment "+name, "zone %s has one of this name already", at.Name)
	}
	return nil
}

// sourceOfBE returns the dataset that from means.
func (s *Service) sourceOfBE(ctx context.Context, at Place, from string) (string, error) {
	r, err := readRecord(at.activePath(""))
	if from == "" || err == nil && from == r.activeBE().Name {
		return at.active(), err
	}
	snap, isSnapshot := strings.CutPrefix(from, "@")
	if !isSnapshot && config.ValidSnapshotName(from) == nil && at.hasBE(from) {
		return at.be(from), nil
	}
	if _, err := s.findSnapshot(ctx, at.Name, snap); err == nil {
		return at.dataset("@" + snap), nil
	}
	return "", errdefs.New(errdefs.NotFound, "create from "+from, "zone %s has no boot environment and no snapshot of this name", at.Name).
		WithHint("zone be list -z %s; zone snapshots %s", at.Name, at.Name)
}

func (s *Service) createBELocked(ctx context.Context, at Place, c BESpec, from string) error {
	j, err := s.begin(opBECreate, at.Pool.Info().Name, at.Name)
	if err != nil {
		return err
	}
	tmp := path.Join("tmp", j.ID)
	err = s.buildBE(ctx, at, from, path.Join(tmp, "active"), c)
	if err == nil {
		err = j.step("place", c.Name)
	}
	if err == nil {
		err = host.RenameNew(at.Pool.Path(path.Join(tmp, "active")), at.Pool.Path(at.be(c.Name)))
	}
	undo := s.removeTree(context.WithoutCancel(ctx), at.Pool, tmp)
	j.endUnless(undo)
	return errors.Join(err, undo)
}

func (s *Service) buildBE(ctx context.Context, at Place, from, dataset string, c BESpec) error {
	if err := at.Pool.Snapshot(ctx, from, dataset, false); err != nil {
		return err
	}
	dir := at.Pool.Path(dataset)
	r, err := readRecord(dir)
	if err != nil {
		return err
	}
	r.BE = &bootEnv{Name: c.Name, Description: c.Description, Created: time.Now().UTC()}
	r.Next, r.Taken = "", nil
	return writeRecord(dir, r)
}

func (s *Service) mendBECreate(ctx context.Context, j *journal) (string, error) {
	pool, err := s.Pools.Open(ctx, j.Pool)
	if errdefs.Is(err, errdefs.NotFound) {
		return poolGone, nil
	}
	if err != nil {
		return "", err
	}
	if err := s.removeTree(ctx, pool, path.Join("tmp", j.ID)); err != nil {
		return "", err
	}
	if j.Step == "place" && (Place{pool, j.Zones[0]}).hasBE(j.Detail) {
		return "it was complete", nil
	}
	return "removed the unfinished copy; the zone was not touched", nil
}

// findBE returns the place of a zone that has the boot environment, beside its
// active root; active tells that it is the active one instead.
func (s *Service) findBE(ctx context.Context, zone, name string) (at Place, active bool, err error) {
	if at, err = s.Find(ctx, zone); err != nil {
		return at, false, err
	}
	r, unreadable := readRecord(at.activePath(""))
	if unreadable == nil && r.activeBE().Name == name {
		return at, true, nil
	}
	if validBEName(name) == nil && at.hasBE(name) {
		return at, false, nil
	}
	e := errdefs.New(errdefs.NotFound, "boot environment "+name, "zone %s has none of this name", zone)
	if list, err := s.BootEnvs(ctx, zone); err == nil {
		names := make([]string, len(list))
		for i, b := range list {
			names[i] = b.Name
		}
		if near := config.Nearest(name, names); near != "" {
			e.Why += fmt.Sprintf("; the nearest is %q", near)
		}
	}
	return at, false, e.WithHint("zone be list -z %s", zone)
}

// RenameBE gives a boot environment, active or not, another name.
func (s *Service) RenameBE(ctx context.Context, zone, name, to string) error {
	if err := validBEName(to); err != nil {
		return err
	}
	l, err := s.lock(ctx, "be rename", zone)
	if err != nil {
		return err
	}
	defer l.unlock()
	at, active, err := s.findBE(ctx, zone, name)
	if err != nil {
		return err
	}
	if err := s.freeBE("rename", at, to); err != nil {
		return err
	}
	r, err := readRecord(at.activePath(""))
	if active {
		if err != nil {
			return err
		}
		be := r.activeBE()
		be.Name = to
		r.BE = &be
		return host.WriteJSON(at.activePath(recordFile), r, true)
	}
	if err := refuseNext("rename", r, name); err != nil {
		return err
	}
	return s.renameDataset(ctx, at, at.be(name), at.be(to))
}

// renameDataset moves a root within the zone's directory, out of sight of who
// counts the users of layers meanwhile.
func (s *Service) renameDataset(ctx context.Context, at Place, from, to string) error {
	k, err := s.lockLayers(ctx, "rename "+from, at.Pool)
	if err != nil {
		return err
	}
	defer k.Unlock()
	return at.Pool.Rename(ctx, from, to)
}

func refuseNext(op string, r Record, name string) error {
	if r.Next != name {
		return nil
	}
	return errdefs.New(errdefs.WrongState, op+" boot environment "+name, "zone %s is to boot from it next", r.Name).
		WithHint("zone be activate -z %s %s", r.Name, r.activeBE().Name)
}

// CheckDestroyBE returns the error that DestroyBE would end with, as far as
// that can be told beforehand.
func (s *Service) CheckDestroyBE(ctx context.Context, zone, name string) error {
	_, err := s.destroyableBE(ctx, zone, name)
	return err
}

func (s *Service) destroyableBE(ctx context.Context, zone, name string) (Place, error) {
	at, active, err := s.findBE(ctx, zone, name)
	if err != nil {
		return at, err
	}
	if active {
		return at, errdefs.New(errdefs.WrongState, "destroy boot environment "+name, "it is the active one of zone %s", zone).
			WithHint("zone be activate -z %s OTHER", zone)
	}
	if r, err := readRecord(at.activePath("")); err == nil {
		return at, refuseNext("destroy", r, name)
	}
	return at, nil
}

// DestroyBE removes a boot environment that the zone does not run from.
func (s *Service) DestroyBE(ctx context.Context, zone, name string) error {
	l, err := s.lock(ctx, "be destroy", zone)
	if err != nil {
		return err
	}
	defer l.unlock()
	at, err := s.destroyableBE(ctx, zone, name)
	if err != nil {
		return err
	}
	if err := at.Pool.Delete(ctx, at.be(name)); err != nil {
		return err
	}
	s.tidyLayers(ctx, at.Pool)
	return nil
}
