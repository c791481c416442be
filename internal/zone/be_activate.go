package zone

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"zone/internal/errdefs"
	"zone/internal/host"
)

// ActivateBE makes a boot environment the zone's root: at once when nothing of
// the zone runs, else from its next boot, of which later is true. Nothing is
// destroyed: the root that is replaced becomes a boot environment.
func (s *Service) ActivateBE(ctx context.Context, zone, name string) (later bool, err error) {
	l, err := s.lock(ctx, opBEActivate, zone)
	if err != nil {
		return false, err
	}
	defer l.unlock()
	at, _, err := s.findBE(ctx, zone, name)
	if err != nil {
		return false, err
	}
	return s.activateLocked(ctx, at, name)
}

func (s *Service) activateLocked(ctx context.Context, at Place, name string) (later bool, err error) {
	r, unreadable := readRecord(at.activePath(""))
	if unreadable == nil && r.activeBE().Name == name {
		return false, s.setNext(at, r, "")
	}
	switch s.status(at).State {
	case Ready, Running, ShuttingDown, Mounted:
		if unreadable != nil {
			return false, unreadable
		}
		return true, s.setNext(at, r, name)
	}
	if err := s.idle("activate "+name+" of", at); err != nil {
		return false, err
	}
	return false, s.exchangeBE(ctx, at, name)
}

// setNext notes in the active root which boot environment is to replace it.
// One write replaces the record, so it needs no journal.
func (s *Service) setNext(at Place, r Record, name string) error {
	if r.Next == name {
		return nil
	}
	r.Next = name
	return host.WriteJSON(at.activePath(recordFile), r, true)
}

// activatePending exchanges the roots if a boot environment was activated
// while the zone ran. The zone must not run.
func (s *Service) activatePending(ctx context.Context, at Place) error {
	r, err := readRecord(at.activePath(""))
	if err != nil || r.Next == "" {
		return err
	}
	if !at.hasBE(r.Next) {
		return errdefs.New(errdefs.WrongState, "boot "+at.Name, "its boot environment %s, which is to be active now, is missing", r.Next).
			WithHint("zone be activate -z %s %s", at.Name, r.activeBE().Name)
	}
	return s.exchangeBE(ctx, at, r.Next)
}

// refusePending refuses to keep a root that the zone's next boot will not use.
func (s *Service) refusePending(ctx context.Context, name string) error {
	at, err := s.Find(ctx, name)
	if err != nil {
		return err
	}
	r, err := readRecord(at.activePath(""))
	if err != nil || r.Next == "" {
		return err
	}
	return errdefs.New(errdefs.WrongState, "snapshot "+name, "boot environment %s is to be active from its next boot", r.Next).
		WithHint("zone reboot %s", name)
}

// exchangeBE swaps the active root with a boot environment. The mark in the
// record of the root that comes tells a later look on which side of the
// exchange a dead process was.
func (s *Service) exchangeBE(ctx context.Context, at Place, name string) error {
	r, _ := readRecord(at.activePath("")) // a root that cannot be read is replaced as well
	old := freeBEName(at, r.activeBE().Name)
	j, err := s.begin(opBEActivate, at.Pool.Info().Name, at.Name)
	if err != nil {
		return err
	}
	if err := s.prepareBE(at, name, j.ID); err != nil {
		j.end()
		return explainFull("activate "+name, at.Pool, err)
	}
	if err := j.step(stepExchange, name+"/"+old); err != nil {
		j.end()
		return err
	}
	k, err := s.lockLayers(ctx, "activate "+name, at.Pool)
	if err != nil {
		j.end()
		return err
	}
	defer k.Unlock()
	if err := host.Exchange(at.Pool.Path(at.active()), at.Pool.Path(at.be(name))); err != nil {
		j.end()
		return err
	}
	err = s.nameReplaced(context.WithoutCancel(ctx), at, name, old)
	j.endUnless(err)
	return err
}

// freeBEName returns name, or with a number where it is taken.
func freeBEName(at Place, name string) string {
	free := name
	for n := 2; at.hasBE(free); n++ {
		free = fmt.Sprintf("%s-%d", name, n)
	}
	return free
}

// prepareBE gives a boot environment what belongs to the zone and not to one
// of its roots: the present configuration, address and name. Until it is
// active nobody reads that of it, so it may be repeated.
func (s *Service) prepareBE(at Place, name, id string) error {
	dir := at.Pool.Path(at.be(name))
	r, err := readRecord(dir)
	if err != nil {
		return err
	}
	if now, err := readRecord(at.activePath("")); err == nil {
		r.Name, r.UUID, r.Address = now.Name, now.UUID, now.Address
	}
	be := r.activeBE()
	be.Name = name
	r.BE, r.Next, r.Rewritten = &be, "", id
	if z, err := readConfig(at.activePath("")); err == nil {
		if err := writeConfig(dir, z); err != nil {
			return err
		}
	}
	return writeRecord(dir, r)
}

// nameReplaced gives the root that the exchange left under the name of the new
// one its own name. It may be repeated. The lock of the layers is held.
func (s *Service) nameReplaced(ctx context.Context, at Place, name, old string) error {
	if !at.hasBE(name) {
		return nil
	}
	return at.Pool.Rename(ctx, at.be(name), at.be(old))
}

func (s *Service) mendBEActivate(ctx context.Context, j *journal) (string, error) {
	pool, err := s.Pools.Open(ctx, j.Pool)
	if errdefs.Is(err, errdefs.NotFound) {
		return poolGone, nil
	}
	if err != nil {
		return "", err
	}
	at := Place{pool, j.Zones[0]}
	name, old, _ := strings.Cut(j.Detail, "/")
	if j.Step != stepExchange {
		return "nothing was changed", nil
	}
	if _, err := os.Stat(at.dir()); errors.Is(err, os.ErrNotExist) {
		return "the zone is gone", nil
	}
	exchanged, err := wasExchanged(at, name, j.ID)
	if err != nil {
		return "", err
	}
	if !exchanged {
		return "took it back; the zone is as before", nil
	}
	k, err := s.lockLayers(ctx, "activate "+name, pool)
	if err != nil {
		return "", err
	}
	defer k.Unlock()
	return "finished it; " + name + " is active", s.nameReplaced(ctx, at, name, old)
}

// wasExchanged finds the root that carries the mark of the operation id.
func wasExchanged(at Place, name, id string) (bool, error) {
	now, err := readRecord(at.activePath(""))
	if err == nil {
		return now.Rewritten == id, nil
	}
	other, otherErr := readRecord(at.Pool.Path(at.be(name)))
	if otherErr == nil && other.Rewritten == id {
		return false, nil
	}
	return false, fmt.Errorf("tell the old root from the new one: %w", errors.Join(err, otherErr))
}
