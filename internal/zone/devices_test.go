package zone

import (
	"os"
	"strings"
	"testing"

	"zone/internal/config"
	"zone/internal/errdefs"
)

func TestFindDevices(t *testing.T) {
	for _, tt := range []struct {
		match string
		want  string // paths that are found
		why   string
	}{
		{"/dev/zero", "/dev/zero", ""},
		{"/dev/[zn]?[lr][lo]", "/dev/null /dev/zero", ""},
		{"/dev/nothing-like-this*", "", ""},
		{"/dev/nothing-like-this", "", "does not exist"},
		{"/dev/pts", "", "is no device"},
		{"/dev/fd", "", "is no device"},
		{"/dev/mem", "", "the host's memory"},
		{"/dev/k?sg", "", "the kernel's log"},
		{"/dev/console", "", "the host's console"},
		{"/dev/loop-control", "", "loop devices"},
	} {
		if _, err := os.Lstat(tt.match); err != nil && tt.why != "" && tt.why != "does not exist" && !strings.Contains(tt.match, "?") {
			continue // this machine has none
		}
		list, err := findDevices("a", []config.Device{{Match: tt.match}, {Match: tt.match}})
		var found []string
		for _, d := range list {
			found = append(found, d.Path)
		}
		switch {
		case tt.why == "" && (err != nil || strings.Join(found, " ") != tt.want):
			t.Errorf("%s: %v, %v; want %s", tt.match, found, err, tt.want)
		case tt.why != "" && err == nil && strings.Contains(tt.match, "?"): // nothing there
		case tt.why != "" && (!errdefs.Is(err, errdefs.NotSupported) || !strings.Contains(err.Error(), tt.why)):
			t.Errorf("%s: %v, want %q", tt.match, err, tt.why)
		}
	}
}
