package btrfs

import (
	"context"
	"time"
)

const iocGetSubvolInfo = 0x81f8943c

type timespec struct {
	Sec  uint64
	Nsec uint32
	_    uint32
}

type subvolInfoArgs struct {
	TreeID                                 uint64
	Name                                   [256]byte
	ParentID, DirID, Generation, Flags     uint64
	UUID, ParentUUID, ReceivedUUID         [16]byte
	CTransID, OTransID, STransID, RTransID uint64
	CTime, OTime, STime, RTime             timespec
	_                                      [8]uint64
}

// Created returns when the dataset was made. The inode's own times will not
// do: a snapshot inherits those of its source.
func (p *Pool) Created(_ context.Context, dataset string) (time.Time, error) {
	f, err := p.open(dataset)
	if err != nil {
		return time.Time{}, p.wrap("age of", dataset, err)
	}
	defer f.Close()
	var a subvolInfoArgs
	if err := ioctl(f, iocGetSubvolInfo, &a); err != nil {
		return time.Time{}, p.wrap("age of", dataset, err)
	}
	return time.Unix(int64(a.OTime.Sec), int64(a.OTime.Nsec)), nil
}
