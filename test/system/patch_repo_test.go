package system

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// patchDeb is a package to build.
type patchDeb struct {
	name, version string
	fields        string            // more lines of the control file
	postinst      string            // shell, run with set -e; "" for none
	files         map[string]string // besides the mark that every package has
	conffiles     []string
	payload       int64 // bytes of zeros: next to nothing in the archive
}

// file is what the package is called in the repository.
func (d patchDeb) file() string { return d.name + "_" + d.version + "_all.deb" }

func (d patchDeb) control() string {
	return fmt.Sprintf("Package: %s\nVersion: %s\nArchitecture: all\nMaintainer: test <test@example.invalid>\n%s"+
		"Description: a package of the tests\n", d.name, d.version, d.fields)
}

// patchMark is a file of each package that holds its version: what is unpacked
// can be told from what the database says.
func patchMark(name string) string { return "/usr/share/zt/" + name }

// build returns the package's file.
func (d patchDeb) build(t testing.TB) []byte {
	t.Helper()
	dir := t.TempDir()
	put := func(name, content string, mode os.FileMode) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	put("root/DEBIAN/control", d.control(), 0o644)
	put("root"+patchMark(d.name), d.version+"\n", 0o644)
	if d.postinst != "" {
		put("root/DEBIAN/postinst", "#!/bin/sh\nset -e\n[ \"$1\" = configure ] || exit 0\n"+d.postinst+"\n", 0o755)
	}
	if len(d.conffiles) > 0 {
		put("root/DEBIAN/conffiles", strings.Join(d.conffiles, "\n")+"\n", 0o644)
	}
	for name, content := range d.files {
		put("root"+name, content, 0o644)
	}
	if d.payload > 0 {
		put("root/usr/share/zt/payload", "", 0o644)
		if err := os.Truncate(filepath.Join(dir, "root/usr/share/zt/payload"), d.payload); err != nil {
			t.Fatal(err)
		}
	}
	deb := filepath.Join(dir, "out.deb")
	out, err := exec.Command("dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", filepath.Join(dir, "root"), deb).CombinedOutput()
	if err != nil {
		t.Fatalf("dpkg-deb: %v\n%s", err, out)
	}
	data, err := os.ReadFile(deb)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// patchTar packs files by name.
func patchTar(t testing.TB, files map[string][]byte) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name])), ModTime: time.Now()})
		if err == nil {
			_, err = w.Write(files[name])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// patchRepo is a package source on the addresses of this machine. It may be
// changed while it serves.
type patchRepo struct {
	server *httptest.Server

	mu    sync.Mutex // guards all below
	files map[string][]byte
	fault map[string]http.HandlerFunc // by file; "" stands for all
	got   map[string]int              // whole answers by file
	sent  int64                       // bytes of whole answers
}

func newPatchRepo(t testing.TB) *patchRepo {
	t.Helper()
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &patchRepo{}
	r.server = &httptest.Server{Listener: l, Config: &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second}}
	r.server.Start()
	t.Cleanup(r.server.Close)
	r.publish(t)
	return r
}

func (r *patchRepo) port() int { return r.server.Listener.Addr().(*net.TCPAddr).Port }

// publish makes these packages all that there is, and forgets faults and
// counts.
func (r *patchRepo) publish(t testing.TB, debs ...patchDeb) {
	t.Helper()
	files := map[string][]byte{}
	var index strings.Builder
	for _, d := range debs {
		data := d.build(t)
		files[d.file()] = data
		fmt.Fprintf(&index, "%sFilename: ./%s\nSize: %d\nSHA256: %x\n\n", d.control(), d.file(), len(data), sha256.Sum256(data))
	}
	files["Packages"] = []byte(index.String())
	files["Release"] = fmt.Appendf(nil, "Origin: test\nLabel: test\nSuite: test\nDate: %s\nSHA256:\n %x %d Packages\n",
		time.Now().UTC().Format(time.RFC1123), sha256.Sum256(files["Packages"]), len(files["Packages"]))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files, r.fault, r.got, r.sent = files, map[string]http.HandlerFunc{}, map[string]int{}, 0
}

// fail answers requests for a file by f until the next publish.
func (r *patchRepo) fail(file string, f http.HandlerFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault[file] = f
}

// mend takes all faults away.
func (r *patchRepo) mend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.fault)
}

// counts returns how often each file was sent and how many bytes in all.
func (r *patchRepo) counts() (map[string]int, int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.got), r.sent
}

func (r *patchRepo) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	name := strings.TrimPrefix(filepath.Clean(q.URL.Path), "/")
	r.mu.Lock()
	data, ok := r.files[name]
	fault := r.fault[name]
	if fault == nil {
		fault = r.fault[""]
	}
	if ok && fault == nil {
		r.got[name]++
		r.sent += int64(len(data))
	}
	r.mu.Unlock()
	switch {
	case fault != nil:
		fault(w, q)
	case !ok:
		http.NotFound(w, q)
	default:
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		_, _ = w.Write(data)
	}
}

// patchHangUp promises a file and breaks the connection in the middle of it.
func patchHangUp(w http.ResponseWriter, _ *http.Request) {
	c, buf, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	_, _ = buf.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\nhalf")
	_ = buf.Flush()
	_ = c.Close()
}
