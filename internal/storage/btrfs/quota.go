package btrfs

import (
	"encoding/binary"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// enableSimpleQuota turns simple quotas on. It reports false on kernels that
// do not have them (before 6.7). Classic qgroups are never used: with them,
// each snapshot after deletions took three seconds.
func enableSimpleQuota(root *os.File) (bool, error) {
	err := ioctl(root, iocQuotaCtl, &quotaCtlArgs{Cmd: quotaEnableSimple})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOTTY) {
		return false, nil
	}
	return err == nil, err
}

// hasSimpleQuota reports whether the file system counts by simple quotas.
func hasSimpleQuota(root *os.File) bool {
	items, err := search(root, quotaTree, 0, typeQgroupStatus, 0, 0)
	if err != nil || len(items) == 0 || len(items[0].data) < 24 {
		return false // no quota tree
	}
	flags := binary.LittleEndian.Uint64(items[0].data[16:])
	return flags&qgroupStatusOn != 0 && flags&qgroupStatusSimple != 0
}

// charged returns the bytes that simple quotas charge to a subvolume, as of the
// last transaction.
func charged(root *os.File, subvol uint64) (int64, error) {
	items, err := search(root, quotaTree, 0, typeQgroupInfo, subvol, subvol)
	if err != nil {
		return 0, err
	}
	if len(items) == 0 || len(items[0].data) < 16 {
		return 0, nil // made since the last transaction
	}
	return int64(binary.LittleEndian.Uint64(items[0].data[8:])), nil
}
