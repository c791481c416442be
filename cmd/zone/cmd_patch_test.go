package main

import (
	"bytes"
	"strings"
	"testing"
)

// runPatch runs one command line in an empty home. None of those tested comes
// as far as the zones.
func runPatch(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	a := &app{stdin: strings.NewReader(""), stdout: &out, stderr: &err}
	dir := t.TempDir()
	code = a.main(t.Context(), append([]string{"--home", dir, "--run", dir + "/run", "patch"}, args...))
	return code, out.String(), err.String()
}

func TestPatchRefusals(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{nil, 2, "no zone named"},
		{[]string{"--all", "web1"}, 2, "not both"},
		{[]string{"--all", "--jobs", "many"}, 2, "allowed: auto, or 1 and up"},
		{[]string{"--all", "--jobs", "0"}, 2, "allowed: auto, or 1 and up"},
		{[]string{"--all", "--max-unavailable", "0"}, 2, "allowed: 1 and up"},
		{[]string{"--all", "--lock-wait", "-1s"}, 2, "more than 0s"},
		{[]string{"--global"}, 13, "later version"},
		{[]string{"--group", "web"}, 13, "later version"},
		{[]string{"--resume", "x", "--all"}, 2, "its own list"},
		{[]string{"show", "20260102-150405-abcd"}, 10, "no such run"},
		{[]string{"show"}, 2, "arg"},
	} {
		code, out, errText := runPatch(t, c.args...)
		if code != c.code || !strings.Contains(errText, c.want) || out != "" {
			t.Errorf("patch %v: exit %d, want %d; stdout %q; stderr %q, want %q", c.args, code, c.code, out, errText, c.want)
		}
	}
}

func TestPatchListEmpty(t *testing.T) {
	code, out, errText := runPatch(t, "list", "--json")
	if code != 0 || !strings.Contains(out, `"runs": []`) || !strings.Contains(out, `"schema": 1`) {
		t.Errorf("exit %d, %q, %q", code, out, errText)
	}
	if code, out, _ := runPatch(t, "list"); code != 0 || !strings.HasPrefix(out, "RUN") {
		t.Errorf("exit %d, %q", code, out)
	}
}
