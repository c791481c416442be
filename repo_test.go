// Package repo_test holds the repository to its own rules: who may import
// whom, what every package says of itself, and that what is generated is
// fresh. It needs no root.
package repo_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// leaves may be imported by every room.
var leaves = []string{"errdefs", "config", "ui"}

// lower is the row of rooms that each deal with one part of the machine.
var lower = []string{"host", "storage", "network", "runtime", "image", "cgroup"}

// rooms is what each room below internal may import besides itself, rows from
// the ground up. Imports go down only, never sideways within a row.
var rooms = map[string][]string{
	"errdefs": nil,
	"config":  {"errdefs"},
	"ui":      {"errdefs"},

	"host": leaves,

	"cgroup":  append([]string{"host"}, leaves...),
	"network": append([]string{"host"}, leaves...),
	"runtime": append([]string{"host"}, leaves...),
	"storage": append([]string{"host"}, leaves...),
	// The one step sideways: an image is a dataset, and reads as nothing else.
	"image": append([]string{"host", "storage"}, leaves...),

	"stat": append([]string{"host", "cgroup"}, leaves...),

	"zone": append(append([]string{"stat"}, lower...), leaves...),

	// Patching knows zones by an interface of its own; cmd joins the two.
	"patch": append([]string{"host"}, leaves...),
}

// kernelRooms are the rooms that may speak to the kernel by x/sys/unix, with
// the reason. Others go through these.
var kernelRooms = map[string]string{
	"host":    "namespaces, locks, paths inside untrusted roots",
	"cgroup":  "signals, and modes of cgroup files",
	"network": "namespaces and links",
	"storage": "ioctls of btrfs, loop devices, clones of files",
	"image":   "owners, modes and attributes inside a root",
	"zone":    "mounts of a zone's root",
	"patch":   "errors and locks of package managers' files",
}

// goFile is one Go source file of the repository.
type goFile struct {
	path string // from the root, with slashes
	ast  *ast.File
}

func (f goFile) test() bool {
	return strings.HasSuffix(f.path, "_test.go") || strings.HasPrefix(f.path, "test/")
}

// room returns the first directory below internal, or "".
func (f goFile) room() string { return roomOf(path.Dir(f.path)) }

func (f goFile) imports(t *testing.T) []string {
	var list []string
	for _, i := range f.ast.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	return list
}

func roomOf(dir string) string {
	rest, ok := strings.CutPrefix(dir, "internal/")
	if !ok {
		return ""
	}
	room, _, _ := strings.Cut(rest, "/")
	return room
}

// files calls f for each file that belongs to the repository.
func files(t *testing.T, f func(name string)) {
	t.Helper()
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{".git", "bin"}, d.Name()) {
			return fs.SkipDir
		}
		if d.Type().IsRegular() {
			f(filepath.ToSlash(name))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func goFiles(t *testing.T) []goFile {
	t.Helper()
	var list []goFile
	set := token.NewFileSet()
	files(t, func(name string) {
		if path.Ext(name) != ".go" {
			return
		}
		parsed, err := parser.ParseFile(set, name, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, goFile{name, parsed})
	})
	if len(list) < 50 {
		t.Fatalf("only %d Go files found", len(list))
	}
	return list
}

func TestImportDirections(t *testing.T) {
	for _, f := range goFiles(t) {
		room := f.room()
		allowed, known := rooms[room]
		if room != "" && !known {
			t.Errorf("%s: the room %s has no place in the table of this test", f.path, room)
			continue
		}
		for _, imported := range f.imports(t) {
			local, ok := strings.CutPrefix(imported, "zone/")
			if !ok {
				continue
			}
			to := roomOf(local)
			switch {
			case to == "":
				// Nobody imports a command; suites and benchmarks use what is under test.
				suite := strings.HasPrefix(f.path, "test/") || strings.HasPrefix(f.path, "bench/")
				if !suite || !strings.HasPrefix(local, "test/") {
					t.Errorf("%s imports %s", f.path, imported)
				}
			case f.test() || room == "" || to == room || slices.Contains(allowed, to):
			default:
				t.Errorf("%s imports %s; internal/%s may import %s only", f.path, imported, room, strings.Join(allowed, ", "))
			}
			if !f.test() && (strings.HasSuffix(local, "/hosttest") || strings.HasSuffix(local, "/storagetest")) {
				t.Errorf("%s is no test and imports %s", f.path, imported)
			}
		}
	}
}

func TestDoorsToTheMachine(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.test() {
			continue
		}
		for _, imported := range f.imports(t) {
			switch {
			case imported == "os/exec" && f.room() != "host":
				t.Errorf("%s imports os/exec; outside programs are started through host.Runner", f.path)
			case imported == "golang.org/x/sys/unix" && kernelRooms[f.room()] == "":
				t.Errorf("%s imports %s; rooms that may are in the table of this test", f.path, imported)
			}
		}
	}
}

func TestPackageComments(t *testing.T) {
	comments := map[string]int{}
	for _, f := range goFiles(t) {
		dir := path.Dir(f.path)
		if strings.HasSuffix(f.path, "_test.go") {
			continue // packages of tests alone need none
		}
		comments[dir] += 0
		if doc := f.ast.Doc.Text(); doc != "" {
			comments[dir]++
			if name := f.ast.Name.Name; name != "main" && !strings.HasPrefix(doc, "Package "+name+" ") {
				t.Errorf("%s: the package comment does not begin with \"Package %s\"", f.path, name)
			}
		}
	}
	for dir, n := range comments {
		if n != 1 {
			t.Errorf("%s has %d package comments, want exactly one", dir, n)
		}
	}
}

// Words that must stand nowhere, put together so that they do not stand here.
// Hosts of package archives change from one network to the next, and work that
// is not finished belongs into an issue.
var forbidden = regexp.MustCompile(`(?i:\b(deb|security|ftp)\.` + `debian\.org|proxy\.` + `golang\.org|registry\.` + `npmjs)|` +
	`\bTO` + `DO\b|\bFIX` + `ME\b|/wo` + `rk/(main|shared)`)

func TestForbiddenWords(t *testing.T) {
	files(t, func(name string) {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.IndexByte(data, 0) >= 0 {
			return // no text
		}
		for i, line := range bytes.Split(data, []byte("\n")) {
			if word := forbidden.Find(line); word != nil {
				t.Errorf("%s:%d: %q", name, i+1, word)
			}
		}
	})
}

// Reference pages come from the program; `make man` refreshes them.
func TestReferenceIsFresh(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command("go", "run", "./cmd/zone", "generate-docs", dir)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "NO_COLOR=") })
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want, got := tree(t, dir), tree(t, "docs/reference")
	if len(want) < 10 {
		t.Fatalf("only %d pages were written", len(want))
	}
	for name, text := range want {
		if got[name] != text {
			t.Errorf("docs/reference/%s is not what the program writes; run make man", name)
		}
		delete(got, name)
	}
	for name := range got {
		t.Errorf("docs/reference/%s is left over; run make man", name)
	}
}

// tree reads all files below dir.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(dir, name))
		found[name] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

var fragment = regexp.MustCompile(`^(Bugfix|Change|Enhancement|Security): [A-Z][^\n]{9,89}[^.\n]\n\n(?s:.+)\n$`)

func TestChangelogFragments(t *testing.T) {
	found := tree(t, "changelog/unreleased")
	if len(found) == 0 {
		t.Fatal("no fragments")
	}
	for name, text := range found {
		if path.Ext(name) != ".md" || !fragment.MatchString(text) {
			t.Errorf("changelog/unreleased/%s is not formed as changelog/TEMPLATE says", name)
		}
	}
}

// A link to a page that is not there helps nobody.
func TestLinksInDocs(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`)
	files(t, func(name string) {
		if path.Ext(name) != ".md" {
			return
		}
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllSubmatch(data, -1) {
			target := string(m[1])
			if strings.Contains(target, "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(name), target)); err != nil {
				t.Errorf("%s links to %s, which is not there", name, target)
			}
		}
	})
}

// skipDoors are the files that may skip a test; all others go through them, so
// that each skip is counted and told at the end of the run.
var skipDoors = map[string]bool{
	"internal/host/hosttest/require.go": true,
	"internal/host/main_test.go":        true, // hosttest imports host
}

func TestSkipsAreCounted(t *testing.T) {
	for _, f := range goFiles(t) {
		if skipDoors[f.path] {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			on, ok := call.X.(*ast.Ident)
			if ok && (on.Name == "t" || on.Name == "b" || on.Name == "f") && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, call.Sel.Name) {
				t.Errorf("%s skips a test uncounted: use hosttest.Require or hosttest.Skip", f.path)
			}
			return true
		})
	}
}
