package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"zone/internal/config"
	"zone/internal/errdefs"
)

// oneZone is a configStore that holds the definition of web1.
type oneZone struct {
	zone     config.Zone
	running  bool
	booted   config.Zone // what it runs with
	warnings []string
	refuse   error
	saves    int
}

func (s *oneZone) LoadConfig(_ context.Context, name string) (config.Zone, error) {
	if name != "web1" {
		return config.Zone{}, errdefs.New(errdefs.NotFound, name, "no such zone")
	}
	return s.zone, nil
}

func (s *oneZone) UpdateConfig(ctx context.Context, name string, change func(config.Zone) (config.Zone, error)) error {
	old, err := s.LoadConfig(ctx, name)
	if err != nil {
		return err
	}
	next, err := change(old)
	if err != nil {
		return err
	}
	if len(config.Diff(old, next)) > 0 {
		s.zone = next
		s.saves++
	}
	return nil
}

func (s *oneZone) VerifyConfig(context.Context, string, config.Zone) ([]string, error) {
	return s.warnings, s.refuse
}

func (s *oneZone) RunningConfig(context.Context, string) (config.Zone, bool, error) {
	return s.booted, s.running, nil
}

func (s *oneZone) ApplyConfig(context.Context, string) (applied, waiting []config.Change, err error) {
	applied, waiting = config.SplitLive(config.Pending(s.booted, s.zone, "web1"))
	return applied, waiting, s.refuse
}

// runConfig runs a verb and returns what it printed.
func runConfig(s configStore, format string, run configRun, args ...string) (stdout, stderr string, err error) {
	var out, errOut bytes.Buffer
	a := &app{format: format, stdout: &out, stderr: &errOut}
	err = run(context.Background(), a, s, args)
	return out.String(), errOut.String(), err
}

func TestConfigShow(t *testing.T) {
	s := &oneZone{zone: config.Zone{CPUShares: 200, CappedMemory: config.CappedMemory{Physical: 512 << 20}}}
	out, _, err := runConfig(s, "table", configShow, "web1")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range [][]string{
		{"KEY", "VALUE", "SOURCE"},
		{"cpu-shares", "200", "set"},
		{"capped-memory.physical", "512M", "set"},
		{"hostname", "web1", "default"},
		{"max-lwps", "-", "-"},
	} {
		if !hasLine(out, want) {
			t.Errorf("no line %q in\n%s", want, out)
		}
	}
	for key, want := range map[string]string{"capped-memory": "512M\n", "hostname": "web1\n", "max-lwps": "\n"} {
		if out, _, err := runConfig(s, "table", configShow, "web1", key); err != nil || out != want {
			t.Errorf("show %s: %q, %v; want %q", key, out, err, want)
		}
	}
	if _, _, err := runConfig(s, "table", configShow, "web1", "cpu-share"); !errdefs.Is(err, errdefs.Usage) {
		t.Errorf("unknown key: %v", err)
	}
}

func hasLine(out string, fields []string) bool {
	for line := range strings.Lines(out) {
		if strings.Join(strings.Fields(line), " ") == strings.Join(fields, " ") {
			return true
		}
	}
	return false
}

func TestConfigShowJSON(t *testing.T) {
	swap := config.Size(0)
	s := &oneZone{zone: config.Zone{
		CappedCPU:    config.CappedCPU{NCPUs: 0.5},
		CappedMemory: config.CappedMemory{Physical: 512 << 20, Swap: &swap},
		Attr:         map[string]string{"note": ""},
	}}
	out, _, err := runConfig(s, "json", configShow, "web1")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Schema int
		Keys   []configRow
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || got.Schema != 1 {
		t.Fatalf("%v in %s", err, out)
	}
	want := map[string]any{
		"root": "sparse", "autoboot": false, "hostname": "web1", "description": nil, "cpu-shares": 100.0,
		"max-lwps": nil, "shutdown-timeout": 30.0, "capped-cpu.ncpus": 0.5, "capped-memory.physical": float64(512 << 20),
		"capped-memory.swap": 0.0, "capped-memory.locked": nil, "capped-memory.oom": "process", "max-shm-memory": nil,
		"max-shm-ids": nil, "max-sem-ids": nil, "max-msg-ids": nil, "limitpriv": "default", "hostid": nil, "fs": nil, "device": nil, "net.ip-type": "exclusive", "attr.note": "",
	}
	for _, r := range got.Keys {
		if v, known := want[r.Key]; !known || v != r.Value {
			t.Errorf("%s is %#v, want %#v", r.Key, r.Value, v)
		}
		delete(want, r.Key)
	}
	if len(want) != 0 {
		t.Errorf("missing: %v", want)
	}
}

func TestConfigSet(t *testing.T) {
	s := &oneZone{running: true, warnings: []string{"only 2 CPUs here"}}
	out, told, err := runConfig(s, "", configSet, "web1", "cpu-shares=50", "hostname=www", "attr.a=b", "root=sparse")
	if err != nil || s.saves != 1 {
		t.Fatalf("%v, saved %d times", err, s.saves)
	}
	if v, _ := config.Get(s.zone, "cpu-shares"); v != "50" {
		t.Errorf("cpu-shares is %s", v)
	}
	if out != "" || !strings.Contains(told, "web1 is running: cpu-shares takes effect when applied (zone config apply web1) or at the next boot\n") ||
		!strings.Contains(told, "web1 is running: hostname takes effect at the next boot (zone reboot web1)\n") {
		t.Errorf("stdout %q, stderr %q", out, told)
	}
	if !strings.Contains(told, "warning: web1: only 2 CPUs here") || strings.Contains(told, "attr.a") {
		t.Errorf("stderr %q", told)
	}
	// The same again changes nothing, so nothing is saved or told.
	if _, told, err := runConfig(s, "", configSet, "web1", "cpu-shares=50"); err != nil || told != "" || s.saves != 1 {
		t.Errorf("%v, stderr %q, saved %d times", err, told, s.saves)
	}
}

func TestConfigSetRefuses(t *testing.T) {
	refused := errdefs.New(errdefs.NotSupported, "verify web1", "no memory controller")
	tests := []struct {
		name   string
		args   []string
		refuse error
		kind   errdefs.Kind
		says   string
	}{
		{"unknown zone", []string{"web2", "cpu-shares=1"}, nil, errdefs.NotFound, "no such zone"},
		{"all problems", []string{"web1", "cpu-shares=0", "max-lwps=x"}, nil, errdefs.Usage, "\nmax-lwps: "},
		{"fixed key", []string{"web1", "root=whole"}, nil, errdefs.WrongState, "root is sparse since the zone was created"},
		{"host cannot", []string{"web1", "capped-memory=64M"}, refused, errdefs.NotSupported, "no memory controller"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := &oneZone{refuse: tt.refuse}
			_, _, err := runConfig(s, "", configSet, tt.args...)
			if !errdefs.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v", err)
			}
			if s.saves != 0 {
				t.Error("saved in spite of it")
			}
		})
	}
}

func TestConfigClear(t *testing.T) {
	swap := config.Size(1 << 30)
	s := &oneZone{zone: config.Zone{CappedMemory: config.CappedMemory{Physical: 1 << 30, Swap: &swap}}}
	if _, _, err := runConfig(s, "", configClear, "web1", "capped-memory.physical"); err == nil || s.saves != 0 {
		t.Errorf("swap is left alone: %v", err)
	}
	if _, told, err := runConfig(s, "", configClear, "web1", "capped-memory"); err != nil || told != "" {
		t.Errorf("%v, stderr %q", err, told)
	}
	if len(config.SetKeys(s.zone)) != 0 {
		t.Errorf("left: %s", config.Render(s.zone))
	}
}

func TestConfigVerifyAndExport(t *testing.T) {
	s := &oneZone{zone: config.Zone{MaxLWPs: 5}}
	if out, _, err := runConfig(s, "", configExport, "web1"); err != nil || out != "max-lwps = 5\n" {
		t.Errorf("%q, %v", out, err)
	}
	out, _, err := runConfig(s, "json", configVerify, "web1")
	if err != nil || !strings.Contains(out, `"warnings": []`) || !strings.Contains(out, `"schema": 1`) {
		t.Errorf("%q, %v", out, err)
	}
	s.zone.MaxLWPs = -1
	if _, _, err := runConfig(s, "", configVerify, "web1"); !errdefs.Is(err, errdefs.Usage) {
		t.Errorf("got %v", err)
	}
}
