package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/host"
)

func runningZone() *oneZone {
	return &oneZone{
		running: true,
		booted:  config.Zone{MaxLWPs: 50, Description: "old"}.WithDefaults("web1"),
		zone:    config.Zone{CPUShares: 200, Hostname: "www", Description: "new"},
	}
}

func TestConfigDiff(t *testing.T) {
	s := runningZone()
	out, _, err := runConfig(s, "table", configDiff, "web1")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range [][]string{
		{"KEY", "RUNNING", "DEFINED", "BY"},
		{"hostname", "web1", "www", "reboot"},
		{"cpu-shares", "-", "200", "apply"},
		{"max-lwps", "50", "-", "apply"},
	} {
		if !hasLine(out, want) {
			t.Errorf("no line %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "description") {
		t.Errorf("lists a key that holds at once:\n%s", out)
	}
	if out, _, err := runConfig(s, "json", configDiff, "web1"); err != nil || !strings.Contains(out, `"live": true`) {
		t.Errorf("%s, %v", out, err)
	}
	s.running = false
	out, told, err := runConfig(s, "table", configDiff, "web1")
	if err != nil || out != "" || !strings.Contains(told, "web1 is not running") {
		t.Errorf("not running: %q, %q, %v", out, told, err)
	}
	if out, _, err := runConfig(s, "json", configDiff, "web1"); err != nil || !strings.Contains(out, `"changes": []`) {
		t.Errorf("not running: %s, %v", out, err)
	}
}

func TestConfigRevert(t *testing.T) {
	s := runningZone()
	if _, told, err := runConfig(s, "", configRevert, "web1"); err != nil || !strings.Contains(told, "max-lwps: back to 50\n") {
		t.Errorf("%v, %q", err, told)
	}
	if got := string(config.Render(s.zone)); got != "description = \"new\"\nmax-lwps = 50\n" {
		t.Errorf("left:\n%s", got)
	}
	s.running = false
	if _, _, err := runConfig(s, "", configRevert, "web1"); !errdefs.Is(err, errdefs.WrongState) {
		t.Errorf("not running: %v", err)
	}
}

func TestConfigApply(t *testing.T) {
	s := runningZone()
	out, told, err := runConfig(s, "", configApply, "web1")
	if err != nil || out != "cpu-shares: none -> 200\nmax-lwps: 50 -> none\n" || !strings.Contains(told, "hostname takes effect at the next boot") {
		t.Errorf("%q, %q, %v", out, told, err)
	}
	s.zone = s.booted
	if out, told, err := runConfig(s, "", configApply, "web1"); err != nil || out != "" || !strings.Contains(told, "in force") {
		t.Errorf("nothing pending: %q, %q, %v", out, told, err)
	}
}

func TestConfigEdit(t *testing.T) {
	for _, tt := range []struct {
		name, editor string // what the editor does with the file
		kind         errdefs.Kind
		says         string
		left         string
	}{
		{"change", `sed -i 's/= 5/= 7/' "$1"`, 0, "", "max-lwps = 7\n"},
		{"nothing", `true`, 0, "", "max-lwps = 5\n"},
		{"mistakes", `printf 'max-lwps = 5\ncpu-share = 1\nautoboot = 3\n' >"$1"`, errdefs.Usage, "web1.toml:3: autoboot: is a whole number", "max-lwps = 5\n"},
		{"fixed key", `echo 'root = "whole"' >"$1"`, errdefs.WrongState, "root is sparse since", "max-lwps = 5\n"},
		{"editor fails", `exit 3`, errdefs.Failed, "exit code 3", "max-lwps = 5\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			editor := filepath.Join(t.TempDir(), "editor")
			if err := os.WriteFile(editor, []byte("#!/bin/sh\n"+tt.editor+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			t.Setenv("VISUAL", "")
			t.Setenv("EDITOR", editor)
			s := &oneZone{zone: config.Zone{MaxLWPs: 5}}
			var out, errOut bytes.Buffer
			a := &app{stdin: strings.NewReader("y\n"), stdout: &out, stderr: &errOut, runner: host.Exec{}}
			err := configEdit(context.Background(), a, s, []string{"web1"})
			if (tt.says == "") != (err == nil) || err != nil && (!errdefs.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.says)) {
				t.Errorf("got %v", err)
			}
			if got := string(config.Render(s.zone)); got != tt.left {
				t.Errorf("left %q, want %q", got, tt.left)
			}
		})
	}
}
