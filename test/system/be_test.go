package system

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"zone/test/machine"
)

type bootEnv struct {
	Zone, Name, Active, Created, Description string
	Used                                     *int64
}

// bootEnvs returns the boot environments of a zone as "name active" pairs.
func bootEnvs(t *testing.T, m *machine.Machine, zone string) string {
	t.Helper()
	var list struct {
		Schema int
		BEs    []bootEnv `json:"boot_environments"`
	}
	out := m.Must("be", "list", "-z", zone, "--json")
	if err := json.Unmarshal([]byte(out), &list); err != nil || list.Schema != 1 {
		t.Fatalf("zone be list --json printed %q", out)
	}
	var pairs []string
	for _, b := range list.BEs {
		if b.Zone != zone || b.Created == "" || b.Used == nil {
			t.Errorf("boot environment %+v", b)
		}
		pairs = append(pairs, strings.TrimSpace(b.Name+" "+b.Active))
	}
	return strings.Join(pairs, ", ")
}

func TestBootEnvironments(t *testing.T) {
	m := machine.New(t)
	m.BaseImage()
	m.Refused(13, []string{"boot environments of the host"}, "be", "list")
	for _, root := range []string{"sparse", "whole"} {
		t.Run(root, func(t *testing.T) { bootEnvironments(t, m.On(t), root) })
	}
}

func bootEnvironments(t *testing.T, m *machine.Machine, root string) {
	expect := func(want string) {
		t.Helper()
		if got := bootEnvs(t, m, "a"); got != want {
			t.Errorf("boot environments %q, want %q", got, want)
		}
	}
	m.Must("create", "a", "--set", "root="+root)
	m.Must("boot", "a")
	first := m.Expect("a", "running")
	m.Exec("a", "echo one >/root/file; rm /etc/issue; sync")
	m.Must("be", "create", "-z", "a", "two", "-d", "the good one")
	m.Exec("a", "echo changed >/root/file; sync")
	expect("initial NR, two")
	if out := m.Must("be", "list", "-z", "a", "two"); !strings.Contains(out, "the good one") || strings.Contains(out, "initial") {
		t.Errorf("be list two: %q", out)
	}

	// A running zone keeps its root until it boots again.
	r := m.Try("be", "activate", "-z", "a", "two")
	if r.Code != 0 || !strings.Contains(r.Stderr, "boots from two next") {
		t.Errorf("activate: exit code %d, %q", r.Code, r.Stderr)
	}
	expect("initial N, two R")
	if got := m.Exec("a", "cat /root/file"); got != "changed" {
		t.Errorf("the running zone shows %q", got)
	}
	m.Refused(12, []string{"boot from it next"}, "be", "destroy", "-z", "a", "two", "-F")
	m.Must("reboot", "a")
	expect("initial, two NR")
	if got := m.Exec("a", "cat /root/file; test -e /etc/issue || echo removed"); got != "one\nremoved" {
		t.Errorf("after the boot the zone shows %q", got)
	}
	if now := m.Expect("a", "running"); now.UUID != first.UUID || now.Address != first.Address {
		t.Errorf("identity %s %s became %s %s", first.UUID, first.Address, now.UUID, now.Address)
	}
	m.Exec("a", "echo two >/root/file")

	// One that does not run changes at once.
	m.Must("halt", "a")
	m.Must("be", "rename", "-z", "a", "initial", "old")
	m.Must("be", "activate", "-z", "a", "old")
	expect("old NR, two")
	m.Must("boot", "a")
	if got := m.Exec("a", "cat /root/file"); got != "changed" {
		t.Errorf("the first root shows %q", got)
	}

	m.Must("snapshot", "a@s")
	m.Must("be", "create", "-z", "a", "three", "-e", "s")
	expect("old NR, two, three")
	m.Refused(12, []string{"active one"}, "be", "destroy", "-z", "a", "old", "-F")
	m.Refused(10, []string{"boot environment thre", `"three"`}, "be", "activate", "-z", "a", "thre")
	m.Must("be", "destroy", "-z", "a", "two", "-F")
	expect("old NR, three")
	m.Must("delete", "a", "-F")
	m.Tidy("tank")
}

// Roots that are exchanged again and again by killed commands are never lost.
func TestBootEnvironmentsSurviveKills(t *testing.T) {
	m := machine.New(t)
	m.BaseImage()
	m.Must("create", "a")
	m.Must("be", "create", "-z", "a", "b")
	usual := m.Try("be", "activate", "-z", "a", "b").Took
	for i := range 12 {
		args := []string{"be", "activate", "-z", "a", []string{"initial", "b"}[i%2]}
		killedAfter(t, m, args, time.Duration(rand.Float64()*1.2*float64(usual)), false)
		got := bootEnvs(t, m, "a")
		if got != "initial NR, b" && got != "initial, b NR" {
			t.Fatalf("boot environments %q", got)
		}
	}
	m.Must("boot", "a")
	m.Must("delete", "a", "-F")
	m.Tidy("tank")
}
