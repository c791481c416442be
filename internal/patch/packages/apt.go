package packages

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
	"zone/internal/host"
)

// Apt drives apt and dpkg, of Debian and its relatives.
type Apt struct{}

const (
	// aptWork is our own directory in a zone. /run is a tmpfs there: nothing of
	// it outlives the zone's halt, and nothing of it is ever in a snapshot.
	aptWork      = "/run/zone-patch"
	aptLists     = Shared + "/lists"
	aptIndex     = "index.bin" // beside the lists: apt's parsed form of them
	aptStatus    = "/var/lib/dpkg/status"
	aptFrontend  = "/var/lib/dpkg/lock-frontend"
	aptPrefs     = "/etc/apt/preferences"
	aptFetchSize = 48 << 20 // bytes that wait in the zone's memory at once
)

// Name returns "apt".
func (Apt) Name() string { return "apt" }

// Detect looks for dpkg's database and apt-get.
func (Apt) Detect(root *host.Root) bool {
	return root.Exists(aptStatus) && root.Exists("/usr/bin/apt-get")
}

// Sources digests sources, keys, apt's settings, the architectures and the
// version of apt, which lays down the form of the index.
func (Apt) Sources(root *host.Root) (string, error) {
	h := sha256.New()
	for _, p := range []string{
		"/etc/apt", "/usr/share/keyrings", "/usr/lib/apt/apt.conf.d", "/var/lib/dpkg/arch",
	} {
		if err := digest(h, root, p, func(name string) bool {
			return !strings.HasPrefix(name, aptPrefs)
		}); err != nil {
			return "", err
		}
	}
	for _, name := range []string{"apt", "libc6", "dpkg"} {
		v, err := aptInstalled(root, name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %s\n", name, v)
	}
	return hex.EncodeToString(h.Sum(nil))[:32], nil
}

// State digests dpkg's status, apt's marks and the pins.
func (Apt) State(root *host.Root) (string, error) {
	h := sha256.New()
	for _, p := range []string{
		aptStatus, "/var/lib/dpkg/updates", "/var/lib/apt/extended_states", aptPrefs, aptPrefs + ".d",
	} {
		if err := digest(h, root, p, nil); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// digest adds a file, or a directory with all below it, to h. What is not
// there counts as such.
func digest(h io.Writer, root *host.Root, name string, want func(string) bool) error {
	if want != nil && !want(name) {
		return nil
	}
	f, err := root.Open(name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(h, "%q missing\n", name)
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	switch {
	case st.IsDir():
		entries, err := root.ReadDir(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%q directory\n", name)
		for _, e := range entries {
			if err := digest(h, root, path.Join(name, e.Name()), want); err != nil {
				return err
			}
		}
	case st.Mode().IsRegular():
		fmt.Fprintf(h, "%q %d\n", name, st.Size())
		if _, err := io.Copy(h, io.LimitReader(f, 256<<20)); err != nil {
			return err
		}
	}
	return nil
}

// aptInstalled reads a package's version and architecture from dpkg's status.
func aptInstalled(root *host.Root, name string) (string, error) {
	data, err := root.ReadFile(aptStatus)
	if err != nil {
		return "", err
	}
	_, rest, found := strings.Cut("\n\n"+string(data), "\n\nPackage: "+name+"\n")
	if !found {
		return "", nil
	}
	para, _, _ := strings.Cut(rest, "\n\n")
	var v string
	for line := range strings.Lines(para) {
		if strings.HasPrefix(line, "Version: ") || strings.HasPrefix(line, "Architecture: ") {
			v += strings.TrimSpace(line) + " "
		}
	}
	return v, nil
}

// Ready asks dpkg whether any package is half done.
func (Apt) Ready(ctx context.Context, z Zone) error {
	return audit(ctx, z, "the package database was left unfinished before this run")
}

func audit(ctx context.Context, z Zone, why string) error {
	res, err := z.Exec(ctx, aptCmd("dpkg", "--audit"))
	if err != nil {
		return fmt.Errorf("audit packages: %w", err)
	}
	if said := strings.TrimSpace(res.Stdout); said != "" {
		first, _, _ := strings.Cut(said, "\n")
		return errdefs.New(errdefs.WrongState, "audit packages", "%s: %s", why, first).
			WithHint("run in the zone: dpkg --configure -a && apt-get -f install")
	}
	updates, err := z.Root.ReadDir("/var/lib/dpkg/updates")
	if err != nil {
		return fmt.Errorf("audit packages: %w", err)
	}
	for _, e := range updates {
		if strings.Trim(e.Name(), "0123456789") == "" {
			return errdefs.New(errdefs.WrongState, "audit packages", "%s: /var/lib/dpkg/updates is not empty", why).
				WithHint("run in the zone: dpkg --configure -a")
		}
	}
	return nil
}

// Refresh runs apt-get update with lists and caches in our own directory. The
// lists stay compressed: they lie in the zone's memory until they are copied.
func (Apt) Refresh(ctx context.Context, z Zone, dest string) (int64, error) {
	lists := aptWork + "/lists"
	if err := z.Root.MkdirAll(lists, 0o755); err != nil {
		return 0, err
	}
	res, err := z.Exec(ctx, aptCmd("apt-get", "-q", "-y",
		"-o", "Dir::State::lists="+lists,
		"-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=",
		"-o", "Acquire::Languages=none", "-o", "Acquire::GzipIndexes=true",
		"-o", "APT::Update::Error-Mode=any", "-o", "Acquire::Retries=2",
		"update"))
	logOutput(z, res)
	if err != nil {
		return 0, fmt.Errorf("refresh package lists: %w", err)
	}
	n, err := aptFetched(res.Stdout)
	if err != nil {
		return 0, err
	}
	return n, copyFlat(z.Root, lists, dest)
}

// copyFlat copies the plain files of a directory in the zone to a new
// directory of the host, times included: apt compares them with its index.
func copyFlat(root *host.Root, from, dest string) error {
	entries, err := root.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dest, 0o755); err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || e.Name() == "lock" {
			continue
		}
		if err := copyOut(root, path.Join(from, e.Name()), filepath.Join(dest, e.Name())); err != nil {
			return err
		}
	}
	// apt wants these two beside its lists and cannot make them later.
	for _, d := range []string{"partial", "auxfiles"} {
		if err := os.MkdirAll(filepath.Join(dest, d), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func copyOut(root *host.Root, from, to string) error {
	in, err := root.Open(from, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("copy %s: not a regular file", in.Name())
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	err = errors.Join(err, out.Close())
	if err != nil {
		return fmt.Errorf("copy %s: %w", in.Name(), err)
	}
	return os.Chtimes(to, st.ModTime(), st.ModTime())
}

// Index lets apt parse the lists once, under the path that all zones see them
// at: the index names that path. It saves each zone 40 % of a solve.
func (Apt) Index(ctx context.Context, z Zone, dest string) error {
	if err := z.Root.MkdirAll(aptWork, 0o755); err != nil {
		return err
	}
	index := aptWork + "/" + aptIndex
	args := append(aptOptions(), "-o", "Dir::Cache::srcpkgcache="+index, "-s", "install")
	if _, err := z.Exec(ctx, aptCmd("apt-get", args...)); err != nil {
		return fmt.Errorf("index package lists: %w", err)
	}
	if !z.Root.Exists(index) {
		return nil // an apt that does not write one parses in each zone
	}
	if err := copyOut(z.Root, index, filepath.Join(dest, aptIndex)); err != nil {
		return err
	}
	return z.Root.Remove(index)
}

// Fetch gets files with apt's own downloader, so that proxies, credentials and
// mirror lists of the zone count, in batches that fit the zone's memory. What
// came is kept when another file cannot be got: not every zone needs that one.
func (Apt) Fetch(ctx context.Context, z Zone, files []File, keep func(File, io.Reader) error) error {
	dir := aptWork + "/fetch"
	if err := z.Root.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var errs []error
	for len(files) > 0 && ctx.Err() == nil {
		n := batch(files)
		args := []string{"-o", "Acquire::Retries=2", "download-file"}
		for _, f := range files[:n] {
			args = append(args, f.URI, dir+"/"+f.Name, "SHA256:"+f.SHA256)
		}
		res, err := z.Exec(ctx, aptCmd("/usr/lib/apt/apt-helper", args...))
		logOutput(z, res)
		if err != nil {
			errs = append(errs, fmt.Errorf("fetch packages: %w", err))
		}
		for _, f := range files[:n] {
			name := dir + "/" + f.Name
			if err != nil && !z.Root.Exists(name) {
				continue
			}
			if err := keepFile(z.Root, name, f, keep); err != nil {
				errs = append(errs, err)
			}
		}
		files = files[n:]
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// batch returns how many of the files to fetch in one go, at least one.
func batch(files []File) int {
	var sum int64
	for i, f := range files {
		sum += f.Size
		if i > 0 && (sum > aptFetchSize || i == 200) {
			return i
		}
	}
	return len(files)
}

func keepFile(root *host.Root, name string, f File, keep func(File, io.Reader) error) error {
	in, err := root.Open(name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	return errors.Join(keep(f, in), root.Remove(name))
}

// Clean removes our directory.
func (Apt) Clean(ctx context.Context, z Zone) error {
	if !z.Root.Exists(aptWork) {
		return nil
	}
	_, err := z.Exec(ctx, aptCmd("rm", "-rf", aptWork))
	return err
}

func logOutput(z Zone, res host.Result) {
	if z.Log != nil {
		_, _ = io.WriteString(z.Log, res.Stdout)
	}
}

// aptCmd is a command with a fixed environment: nothing of the caller's
// reaches a zone.
func aptCmd(name string, args ...string) host.Cmd {
	return host.Cmd{Name: name, Args: args, Env: []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LC_ALL=C", "HOME=/root", "TERM=dumb", "DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_MODE=l",
	}}
}
