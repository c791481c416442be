package btrfs

import (
	"encoding/binary"
	"encoding/hex"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The requests of linux/btrfs.h, encoded as on every architecture Debian
// calls amd64, arm64, riscv64 or s390x.
const (
	iocSnapDestroy     = 0x5000940f
	iocSubvolCreate    = 0x5000940e
	iocTreeSearch      = 0xd0009411
	iocInoLookup       = 0xd0009412
	iocSnapCreateV2    = 0x50009417
	iocSubvolGetFlags  = 0x80089419
	iocSubvolSetFlags  = 0x4008941a
	iocFsInfo          = 0x8400941f
	iocQuotaCtl        = 0xc0109428
	iocSync            = 0x9408
	quotaEnableSimple  = 4
	subvolReadOnly     = 1 << 1
	rootTree           = 1
	topLevel           = 5
	quotaTree          = 8
	firstFreeObject    = 256 // inode of the root directory of each subvolume
	typeRootRef        = 156
	typeQgroupStatus   = 240
	typeQgroupInfo     = 242
	qgroupStatusOn     = 1 << 0
	qgroupStatusSimple = 1 << 3
)

type volArgs struct {
	Fd   int64
	Name [4088]byte
}

type volArgsV2 struct {
	Fd             int64
	Transid, Flags uint64
	Unused         [4]uint64
	Name           [4040]byte
}

type inoLookupArgs struct {
	TreeID, ObjectID uint64
	Name             [4080]byte
}

type searchKey struct {
	TreeID                   uint64
	MinObjectID, MaxObjectID uint64
	MinOffset, MaxOffset     uint64
	MinTransID, MaxTransID   uint64
	MinType, MaxType         uint32
	NrItems, _               uint32
	_                        [4]uint64
}

type searchArgs struct {
	Key searchKey
	Buf [4096 - 104]byte
}

type fsInfoArgs struct {
	MaxID, NumDevices uint64
	FSID              [16]byte
	_                 [1024 - 32]byte
}

type quotaCtlArgs struct{ Cmd, Status uint64 }

// item is one item of a tree.
type item struct {
	objectID, offset uint64
	data             []byte
}

func ioctl[T any](f *os.File, request uintptr, arg *T) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(arg)))
		runtime.KeepAlive(f)
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}

func subvolCreate(parent *os.File, name string) error {
	var a volArgs
	copy(a.Name[:], name)
	return ioctl(parent, iocSubvolCreate, &a)
}

func subvolSnapshot(source, parent *os.File, name string, readOnly bool) error {
	a := volArgsV2{Fd: int64(source.Fd())}
	if readOnly {
		a.Flags = subvolReadOnly
	}
	copy(a.Name[:], name)
	return ioctl(parent, iocSnapCreateV2, &a)
}

func subvolDestroy(parent *os.File, name string) error {
	var a volArgs
	copy(a.Name[:], name)
	return ioctl(parent, iocSnapDestroy, &a)
}

func isReadOnly(subvol *os.File) (bool, error) {
	var flags uint64
	err := ioctl(subvol, iocSubvolGetFlags, &flags)
	return flags&subvolReadOnly != 0, err
}

func setReadOnly(subvol *os.File, readOnly bool) error {
	var flags uint64
	if err := ioctl(subvol, iocSubvolGetFlags, &flags); err != nil {
		return err
	}
	want := flags &^ subvolReadOnly
	if readOnly {
		want = flags | subvolReadOnly
	}
	if want == flags {
		return nil
	}
	return ioctl(subvol, iocSubvolSetFlags, &want)
}

// treeOf returns the number of the subvolume that a file is in.
func treeOf(f *os.File) (uint64, error) {
	a := inoLookupArgs{ObjectID: firstFreeObject}
	err := ioctl(f, iocInoLookup, &a)
	return a.TreeID, err
}

// pathOf returns the path of a directory inside its subvolume, with a slash at
// the end, or "" for its root.
func pathOf(f *os.File, tree, inode uint64) (string, error) {
	a := inoLookupArgs{TreeID: tree, ObjectID: inode}
	err := ioctl(f, iocInoLookup, &a)
	return unix.ByteSliceToString(a.Name[:]), err
}

// fsid returns the file system's UUID and the number of its devices.
func fsid(f *os.File) (uuid string, devices int, err error) {
	var a fsInfoArgs
	if err := ioctl(f, iocFsInfo, &a); err != nil {
		return "", 0, err
	}
	h := hex.EncodeToString(a.FSID[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:], int(a.NumDevices), nil
}

// search returns the first items of one type, as many as the kernel gives in
// one call.
func search(f *os.File, tree, object uint64, typ uint32, minOffset, maxOffset uint64) ([]item, error) {
	a := searchArgs{Key: searchKey{
		TreeID: tree, MinObjectID: object, MaxObjectID: object,
		MinOffset: minOffset, MaxOffset: maxOffset, MaxTransID: ^uint64(0),
		MinType: typ, MaxType: typ, NrItems: 64,
	}}
	if err := ioctl(f, iocTreeSearch, &a); err != nil {
		return nil, err
	}
	// Each item: a header of transid, objectid, offset (64 bits each), type and
	// length (32 bits each) in the machine's byte order, then the item itself.
	var items []item
	buf := a.Buf[:]
	for range a.Key.NrItems {
		if len(buf) < 32 {
			break
		}
		n := int(binary.NativeEndian.Uint32(buf[28:]))
		if n > len(buf)-32 {
			break
		}
		items = append(items, item{
			objectID: binary.NativeEndian.Uint64(buf[8:]),
			offset:   binary.NativeEndian.Uint64(buf[16:]),
			data:     buf[32 : 32+n],
		})
		buf = buf[32+n:]
	}
	return items, nil
}
