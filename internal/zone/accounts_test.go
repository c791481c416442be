package zone

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"zone/internal/host"
)

// TestCheckAccounts: the engine opens these files before it starts anything in
// a zone, and would wait for ever on a named pipe.
func TestCheckAccounts(t *testing.T) {
	tests := map[string]struct {
		make func(file string) error
		says string
	}{
		"missing": {func(string) error { return nil }, ""},
		"regular": {func(f string) error { return os.WriteFile(f, []byte("root:x:0:0::/:/bin/sh\n"), 0o644) }, ""},
		"pipe":    {func(f string) error { return unix.Mkfifo(f, 0o644) }, "/etc/passwd in the zone is not a regular file"},
		"dir":     {func(f string) error { return os.Mkdir(f, 0o755) }, "not a regular file"},
		"huge": {func(f string) error {
			if err := os.WriteFile(f, nil, 0o644); err != nil {
				return err
			}
			return os.Truncate(f, 10<<30)
		}, "has 10737418240 bytes"},
		"link out": {func(f string) error { return os.Symlink("/etc/passwd", f) }, "cannot be opened"}, // leads to itself in the root
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Mkdir(filepath.Join(dir, "etc"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := test.make(filepath.Join(dir, "etc", "passwd")); err != nil {
				t.Fatal(err)
			}
			root, err := host.OpenRoot(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			err = checkAccounts("boot z", root)
			if test.says == "" && err != nil || test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) {
				t.Errorf("got %v, want %q", err, test.says)
			}
		})
	}
}
