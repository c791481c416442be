package config

import (
	"slices"
	"strings"
	"testing"
)

func TestCapabilities(t *testing.T) {
	standard := Zone{}.Capabilities()
	for _, tt := range []struct {
		in          string
		more, fewer []string
		refused     string
	}{
		{in: "default"},
		{in: "default,+ipc_lock", more: []string{"CAP_IPC_LOCK"}},
		{in: "default,-net_raw,-CAP_MKNOD", fewer: []string{"CAP_NET_RAW", "CAP_MKNOD"}},
		{in: "default,!net_raw,+chown,-ipc_lock,-sys_admin", fewer: []string{"CAP_NET_RAW"}},
		{in: "default,-net_raw,+net_raw"},
		{in: "net_raw", refused: "does not begin with default"},
		{in: "default,", refused: "neither adds nor takes away"},
		{in: "default,net_raw", refused: "neither adds nor takes away"},
		{in: "default,+", refused: "neither adds nor takes away"},
		{in: "default,+sys_admin", refused: "no zone gets: it is root on the host"},
		{in: "default,+CAP_SYS_NICE", refused: "escapes capped-cpu"},
		{in: "default,-setuid", refused: "without which no zone boots"},
		{in: "default,-net_rwa", refused: "did you mean net_raw?"},
		{in: "default,+x", refused: "unknown capability"},
	} {
		z := Zone{}
		err := Set(&z, "limitpriv", tt.in)
		if tt.refused != "" {
			if err == nil || !strings.Contains(err.Error(), tt.refused) {
				t.Errorf("%s: %v, want %q", tt.in, err, tt.refused)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.in, err)
			continue
		}
		want := append(slices.Clone(standard), tt.more...)
		want = slices.DeleteFunc(want, func(c string) bool { return slices.Contains(tt.fewer, c) })
		slices.Sort(want)
		if got := z.Capabilities(); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", tt.in, got, want)
		}
	}
}

// No capability may be in two lists, and the forbidden ones never come out.
func TestCapabilityTables(t *testing.T) {
	for _, c := range append(slices.Clone(defaultCapabilities), optionalCapabilities...) {
		if forbiddenCapabilities[c] != "" {
			t.Errorf("%s is both given and forbidden", c)
		}
	}
	for _, c := range requiredCapabilities {
		if !slices.Contains(defaultCapabilities, c) {
			t.Errorf("%s is required and not given", c)
		}
	}
	if n := len(defaultCapabilities) + len(optionalCapabilities) + len(forbiddenCapabilities); n != 41 {
		t.Errorf("%d capabilities in the tables; the kernel has 41", n)
	}
}

func TestPropertyConflicts(t *testing.T) {
	for _, tt := range []struct {
		set  []string
		want string
	}{
		{[]string{"capped-memory.oom=zone"}, "capped-memory.oom: needs capped-memory.physical"},
		{[]string{"capped-memory.locked=1M", "limitpriv=default,+ipc_lock"}, "capped-memory.locked: limits nothing"},
		{[]string{"hostid=xyz"}, "hexadecimal"},
		{[]string{"hostid=123456789"}, "hexadecimal"},
		{[]string{"max-shm-ids=32769"}, "out of range"},
	} {
		if err := SetAll(&Zone{}, tt.set); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: %v", tt.set, err)
		}
	}
}
