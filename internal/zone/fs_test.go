package zone

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zone/internal/config"
	"zone/internal/errdefs"
)

func TestOpenSpecial(t *testing.T) {
	base := t.TempDir()
	s := &Service{Home: filepath.Join(base, "state/home"), Run: filepath.Join(base, "run")}
	for _, d := range []string{"state/home/x", "run", "data/sub"} {
		must(os.MkdirAll(filepath.Join(base, d), 0o755))
	}
	must(os.Symlink("data", filepath.Join(base, "link")))
	must(os.WriteFile(filepath.Join(base, "file"), nil, 0o644))
	for _, tt := range []struct{ special, options, why string }{
		{base + "/data", "", ""},
		{base + "/data/sub", "rw", ""},
		{"/usr/share", "", ""},
		{base + "/nowhere", "", "does not exist"},
		{base + "/file", "", "is no directory"},
		{base + "/link", "", "symbolic link"},
		{base + "/link/sub", "", "symbolic link"},
		{base + "/state", "", "zones"},
		{base + "/state/home/x", "", "zones"},
		{base + "/run", "", "zones"},
		{base, "", "zones"},
		{"/usr/share", "rw", "allowed: options=ro"},
		{"/etc", "rw", "allowed: options=ro"},
		{"/var/lib", "rw", "allowed: options=ro"},
		{"/proc/sys", "", "file system of the kernel"}, // a link can lead there, too
	} {
		fd, err := s.openSpecial("a", config.FS{Dir: "/srv", Special: tt.special, Options: tt.options})
		if tt.why != "" {
			if !errdefs.Is(err, errdefs.NotSupported) || !strings.Contains(err.Error(), tt.why) {
				t.Errorf("%s %s: %v, want %q", tt.special, tt.options, err, tt.why)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s %s: %v", tt.special, tt.options, err)
			continue
		}
		if to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err != nil || to != tt.special {
			t.Errorf("%s: opened %s, %v", tt.special, to, err)
		}
		closeFd(fd)
	}
}
