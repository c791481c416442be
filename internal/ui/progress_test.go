package ui

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestTerminalProgress(t *testing.T) {
	var b bytes.Buffer
	p := NewProgress(&b, true)
	p.Line("start")
	p.Status("%d of %d", 1, 2)
	p.Status("%d of %d", 1, 2)
	p.Line("web1 done")
	p.Status("2 of 2\x1b[2J\nevil")
	p.Done()
	p.Done()
	want := "start\n\r\x1b[K1 of 2\r\x1b[Kweb1 done\n1 of 2\r\x1b[K2 of 2?[2J?evil\r\x1b[K"
	if b.String() != want {
		t.Errorf("got  %q\nwant %q", b.String(), want)
	}
}

func TestTerminalProgressCutsStatusToWidth(t *testing.T) {
	var b bytes.Buffer
	p := &terminalProgress{w: &b, width: func() int { return 5 }}
	p.Status("äbcdefgh")
	if want := eraseLine + "äbcd"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

func TestPlainProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		p := NewProgress(&b, false)
		p.Status("1 of 9")
		p.Status("2 of 9") // too soon
		p.Line("web1 done")
		time.Sleep(4 * time.Second)
		p.Status("3 of 9") // still too soon
		time.Sleep(time.Second)
		p.Status("4 of 9")
		time.Sleep(time.Minute)
		p.Status("4 of 9") // nothing new
		p.Done()
		p.Status("4 of 9")
		want := "1 of 9\nweb1 done\n4 of 9\n4 of 9\n"
		if b.String() != want {
			t.Errorf("got %q, want %q", b.String(), want)
		}
	})
}

func TestProgressFromManyGoroutines(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		t.Run(fmt.Sprint(terminal), func(t *testing.T) {
			var b bytes.Buffer
			p := NewProgress(&b, terminal)
			var wg sync.WaitGroup
			for i := range 20 {
				wg.Go(func() {
					p.Status("at %d", i)
					p.Line("line %d", i)
				})
			}
			wg.Wait()
			p.Done()
			for i := range 20 {
				if !strings.Contains(b.String(), fmt.Sprintf("line %d\n", i)) {
					t.Errorf("line %d is missing", i)
				}
			}
		})
	}
}

func TestIsTerminal(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for _, v := range []any{w, &bytes.Buffer{}, nil} {
		if IsTerminal(v) {
			t.Errorf("%T is taken for a terminal", v)
		}
	}
}
