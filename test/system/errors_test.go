package system

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"zone/test/machine"
)

// Mistakes of users end in the documented exit codes and say what, why and
// what helps, and leave nothing. Those that never reach the machine are
// scripts in cmd/zone/testdata/script.
func TestMistakes(t *testing.T) {
	m := machine.New(t)
	m.Refused(10, []string{"no such zone", "try: "}, "boot", "nobody")
	m.Refused(10, []string{"pool", "nowhere"}, "pool", "status", "nowhere")
	m.BaseImage()
	for _, c := range []struct {
		code  int
		words []string
		args  []string
	}{
		{10, []string{"bsae", "base"}, []string{"create", "a", "--image", "bsae"}},
		{10, []string{"base@7"}, []string{"create", "a", "--image", "base@7"}},
		{10, []string{"nowhere"}, []string{"create", "a", "--pool", "nowhere"}},
		{10, []string{"nobody"}, []string{"clone", "nobody", "a"}},
		{10, []string{"x*"}, []string{"boot", "x*"}},
		{12, []string{"tank"}, []string{"pool", "create", "tank"}},
		{2, []string{"none named", "--all"}, []string{"boot"}},
	} {
		m.Refused(c.code, c.words, c.args...)
	}
	if names := m.Names(); len(names) > 0 {
		t.Fatalf("zones after nothing but mistakes: %v", names)
	}
	m.Must("create", "alpha")
	for _, c := range []struct {
		code  int
		words []string
		args  []string
	}{
		{12, []string{"create alpha", "exists already", "zone list alpha"}, []string{"create", "alpha"}},
		{12, []string{"clone alpha", "exists already"}, []string{"clone", "alpha", "beta", "alpha"}},
		{10, []string{"zone alhpa", `"alpha"`}, []string{"boot", "alhpa"}},
		{10, []string{"alpha@never"}, []string{"rollback", "alpha@never"}},
		{12, []string{"login alpha", "installed"}, []string{"login", "alpha"}},
		{12, []string{"shutdown alpha", "installed"}, []string{"shutdown", "alpha"}},
		{2, []string{"capped-memory", "12Q"}, []string{"config", "set", "alpha", "capped-memory=12Q"}},
		{11, []string{"base", "in use by alpha"}, []string{"image", "delete", "base", "-F"}},
	} {
		m.Refused(c.code, c.words, c.args...)
	}
	if names := m.Names(); len(names) != 1 {
		t.Errorf("zones: %v", names)
	}
	t.Run("json", func(t *testing.T) { errorsAsData(t, m.On(t)) })
	t.Run("some fail", func(t *testing.T) {
		m := m.On(t)
		m.Must("clone", "alpha", "beta")
		m.Must("boot", "beta")
		m.Refused(3, []string{"boot beta", "running already", "1 of 2 zones failed"}, "boot", "alpha", "beta")
		m.Expect("alpha", "running")
	})
}

// errorsAsData holds --json to one object on standard error.
func errorsAsData(t *testing.T, m *machine.Machine) {
	r := m.Try("boot", "nobody", "--json")
	var e struct {
		Schema   int
		Error    string
		Hint     string
		ExitCode int `json:"exit_code"`
	}
	if err := json.Unmarshal([]byte(r.Stderr), &e); err != nil {
		t.Fatalf("%v in %q", err, r.Stderr)
	}
	if r.Code != 10 || e.Schema != 1 || e.ExitCode != 10 || !strings.Contains(e.Error, "nobody") || e.Hint == "" || r.Stdout != "" {
		t.Errorf("exit code %d, stdout %q, error %+v", r.Code, r.Stdout, e)
	}
}

// A zone that another command works on is waited for and then given up with
// exit code 11. The wait takes a minute, which other parallel tests use.
func TestLocked(t *testing.T) {
	t.Parallel()
	m := machine.New(t)
	m.BaseImage()
	m.Must("create", "a")
	lock, err := os.OpenFile(filepath.Join(m.Run, "locks", "zones", "a"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	m.Refused(11, []string{"boot a", "another command is working on it"}, "boot", "a")
	_ = lock.Close()
	m.Must("boot", "a")
}
