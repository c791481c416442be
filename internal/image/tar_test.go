package image

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/host/hosttest"
)

func writeTar(t *testing.T, name string, headers []tar.Header) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var w io.Writer = f
	if strings.HasSuffix(name, ".gz") {
		z := gzip.NewWriter(f)
		defer z.Close()
		w = z
	}
	tw := tar.NewWriter(w)
	defer tw.Close()
	for _, h := range headers {
		content := "#!hostile"
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(content))
		}
		h.Mode, h.ModTime = 0o755, time.Unix(1e9, 0)
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := tw.Write([]byte(content)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return path
}

var rootHeaders = []tar.Header{
	{Name: "etc/", Typeflag: tar.TypeDir},
	{Name: "bin/sh"},
	{Name: "bin/su", Uid: 1234, Gid: 77},
	{Name: "etc/xattr", PAXRecords: map[string]string{"SCHILY.xattr.user.note": "kept"}},
	{Name: "dev/null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3},
}

func buildTar(t *testing.T, file string) (*Store, *dirPool, Image, error) {
	t.Helper()
	hosttest.Require(t, hosttest.Root, hosttest.Tool("tar"), hosttest.Tool("unshare"), hosttest.Tool("setpriv"))
	s, p := newStore(t)
	s.Runner = host.Exec{}
	img, err := s.Build(t.Context(), BuildSpec{Name: "web", Source: Source{SourceTar, file}}, nil)
	return s, p, img, err
}

func TestBuildFromTar(t *testing.T) {
	for _, name := range []string{"plain.tar", "packed.gz", "od:d name.tar"} {
		s, _, img, err := buildTar(t, writeTar(t, name, rootHeaders))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		r, err := host.OpenRoot(s.RootDir(img))
		if err != nil {
			t.Fatal(err)
		}
		if data, err := r.ReadFile("/bin/su"); err != nil || string(data) != "#!hostile" {
			t.Errorf("%s: %q, %v", name, data, err)
		}
		_ = r.Close()
		checkUnpacked(t, s.RootDir(img))
	}
}

// checkUnpacked looks at what rootHeaders has besides contents.
func checkUnpacked(t *testing.T, root string) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(root, "bin/su"), &st); err != nil || st.Uid != 1234 || st.Gid != 77 {
		t.Errorf("bin/su belongs to %d:%d, %v", st.Uid, st.Gid, err)
	}
	if err := unix.Lstat(filepath.Join(root, "dev/null"), &st); err != nil || st.Rdev != unix.Mkdev(1, 3) {
		t.Errorf("dev/null is device %d, %v", st.Rdev, err)
	}
	value := make([]byte, 16)
	n, err := unix.Getxattr(filepath.Join(root, "etc/xattr"), "user.note", value)
	if err != nil || string(value[:n]) != "kept" {
		t.Errorf("attribute %q, %v", value[:max(n, 0)], err)
	}
}

// Whatever an archive tries, it writes inside its root or not at all.
func TestHostileTarStaysInside(t *testing.T) {
	outside := t.TempDir()
	up := strings.Repeat("../", 30)
	for name, evil := range map[string][]tar.Header{
		"absolute":                  {{Name: outside + "/new"}},
		"dot dot":                   {{Name: up + outside[1:] + "/new"}},
		"absolute link":             {{Name: "x", Typeflag: tar.TypeSymlink, Linkname: outside}, {Name: "x/new"}},
		"relative link":             {{Name: "x", Typeflag: tar.TypeSymlink, Linkname: up + outside[1:]}, {Name: "x/new"}},
		"two links":                 {{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "."}, {Name: "a/x", Typeflag: tar.TypeSymlink, Linkname: outside}, {Name: "x/new"}},
		"replaced directory":        {{Name: "x/", Typeflag: tar.TypeDir}, {Name: "x", Typeflag: tar.TypeSymlink, Linkname: outside}, {Name: "x/new"}},
		"hard link to outside":      {{Name: "h", Typeflag: tar.TypeLink, Linkname: outside + "/victim"}, {Name: "h"}},
		"hard link through a link":  {{Name: "x", Typeflag: tar.TypeSymlink, Linkname: outside}, {Name: "h", Typeflag: tar.TypeLink, Linkname: "x/victim"}, {Name: "h"}},
		"link over etc/resolv.conf": {{Name: "etc/resolv.conf", Typeflag: tar.TypeSymlink, Linkname: outside + "/victim"}},
		"link over etc/machine-id":  {{Name: "etc/machine-id", Typeflag: tar.TypeSymlink, Linkname: outside + "/victim"}},
		"link over etc/ssh":         {{Name: "etc/ssh", Typeflag: tar.TypeSymlink, Linkname: outside}},
	} {
		t.Run(name, func(t *testing.T) {
			victims := map[string]string{"victim": "untouched", "ssh_host_rsa_key": "untouched"}
			for f, content := range victims {
				if err := os.WriteFile(filepath.Join(outside, f), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			_, p, _, err := buildTar(t, writeTar(t, "evil.tar", append(rootHeaders[:3:3], evil...)))
			got := readTree(t, outside)
			if len(got) != len(victims) || got["victim"] != "untouched" || got["ssh_host_rsa_key"] != "untouched" {
				t.Errorf("outside is now %q (build: %v)", got, err)
			}
			if left := p.left(t); err != nil && len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

func TestTarThatIsNoRoot(t *testing.T) {
	_, p, _, err := buildTar(t, writeTar(t, "x.tar", []tar.Header{{Name: "top/etc/", Typeflag: tar.TypeDir}, {Name: "top/bin/sh"}}))
	if err == nil || !strings.Contains(err.Error(), "no root file system") || errdefs.HintOf(err) == "" {
		t.Errorf("error %v", err)
	}
	if left := p.left(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestTarBroken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.tar")
	if err := os.WriteFile(path, []byte("no archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := buildTar(t, path); err == nil || !strings.Contains(err.Error(), "tar") {
		t.Errorf("error %v", err)
	}
}

// A tool ends with the context, its children too.
func TestRunToolCancel(t *testing.T) {
	hosttest.Require(t, hosttest.Root, hosttest.Tool("unshare"), hosttest.Tool("setpriv"))
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := runTool(ctx, host.Exec{}, host.Cmd{Name: "sleep", Args: []string{"60"}})
	if ctx.Err() == nil || err == nil || time.Since(start) > 20*time.Second {
		t.Errorf("after %s: %v", time.Since(start), err)
	}
}
