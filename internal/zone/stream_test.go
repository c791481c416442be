package zone

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/host"
	"zone/internal/image"
)

func testStream(t *testing.T, parts ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := newStreamWriter(&b, map[string]int{"n": len(parts)})
	must(err)
	for i, p := range parts {
		must(w.part(i, func(w io.Writer) error { _, err := io.WriteString(w, p); return err }))
	}
	must(w.end())
	return b.Bytes()
}

func readStream(data []byte) (parts []string, err error) {
	var h map[string]int
	in, err := newStreamReader(bytes.NewReader(data), &h)
	if err != nil {
		return nil, err
	}
	for i := range h["n"] {
		p, err := in.part(i)
		if err != nil {
			return nil, err
		}
		b, err := io.ReadAll(p)
		if err != nil {
			return nil, err
		}
		parts = append(parts, string(b))
	}
	return parts, in.end()
}

func TestStreamRoundTrip(t *testing.T) {
	want := []string{"one", "", strings.Repeat("long ", maxFrame/2)}
	got, err := readStream(testStream(t, want...))
	if err != nil || !cmp.Equal(want, got) {
		t.Errorf("%v, %d parts", err, len(got))
	}
}

// Not one byte may be lost, changed or added within a stream.
func TestStreamDamage(t *testing.T) {
	whole := testStream(t, "first part", "second")
	for i := range whole {
		if _, err := readStream(whole[:i]); err == nil {
			t.Errorf("cut off at %d: taken for whole", i)
		}
		for _, bit := range []byte{1, 0x80} {
			bad := bytes.Clone(whole)
			bad[i] ^= bit
			if _, err := readStream(bad); err == nil {
				t.Errorf("byte %d changed by %#x: taken for whole", i, bit)
			}
		}
		if _, err := readStream(append(bytes.Clone(whole[:i]), append([]byte{0}, whole[i:]...)...)); err == nil {
			t.Errorf("a byte more at %d: taken for whole", i)
		}
	}
}

func FuzzStream(f *testing.F) {
	f.Add([]byte(streamMagic))
	f.Fuzz(func(t *testing.T, data []byte) {
		var h streamHeader
		in, err := newStreamReader(bytes.NewReader(data), &h)
		if err != nil || h.check() != nil {
			return
		}
		for i := range h.Parts {
			p, err := in.part(i)
			if err != nil || p.finish() != nil {
				return
			}
		}
		_ = in.end()
	})
}

// The header is used in paths: nothing but what Send writes may pass.
func TestStreamHeaderCheck(t *testing.T) {
	uuid := host.NewUUID()
	good := func() streamHeader {
		return streamHeader{
			Schema: 1, Zone: "a", Record: Record{Schema: 1, Name: "a", UUID: uuid, Root: Sparse, Image: "base@1", Layers: []string{"0123456789ab"}},
			Image: &image.Image{Name: "base", Version: 1, UUID: uuid}, Config: string(config.Render(config.Zone{})),
			Parts: []streamPart{{partImage, "base@1", encodingTar}, {partLayer, "0123456789ab", encodingBtrfs}, {partZone, "a", encodingTar}},
		}
	}
	if err := good().check(); err != nil {
		t.Fatal(err)
	}
	for what, spoil := range map[string]func(*streamHeader){
		"schema":         func(h *streamHeader) { h.Schema = 2 },
		"name":           func(h *streamHeader) { h.Zone, h.Record.Name, h.Parts[2].ID = "../a", "../a", "../a" },
		"another name":   func(h *streamHeader) { h.Record.Name = "b" },
		"uuid":           func(h *streamHeader) { h.Record.UUID = "../x" },
		"root":           func(h *streamHeader) { h.Record.Root = "none" },
		"image":          func(h *streamHeader) { h.Record.Image, h.Image.Name, h.Parts[0].ID = "../x@1", "../x", "../x@1" },
		"no image":       func(h *streamHeader) { h.Image = nil },
		"another image":  func(h *streamHeader) { h.Image.Version = 2 },
		"layer":          func(h *streamHeader) { h.Record.Layers[0], h.Parts[1].ID = "../../zones", "../../zones" },
		"encoding":       func(h *streamHeader) { h.Parts[0].Encoding = "sh" },
		"missing part":   func(h *streamHeader) { h.Parts = h.Parts[1:] },
		"order":          func(h *streamHeader) { h.Parts[0], h.Parts[1] = h.Parts[1], h.Parts[0] },
		"part":           func(h *streamHeader) { h.Parts[2].ID = "b" },
		"configuration":  func(h *streamHeader) { h.Config = "max-lwps = -5\n" },
		"boot env":       func(h *streamHeader) { h.Record.BE = &bootEnv{Name: "../x"} },
		"too many parts": func(h *streamHeader) { h.Parts = append(h.Parts, h.Parts[2]) },
	} {
		h := good()
		spoil(&h)
		if err := h.check(); err == nil {
			t.Errorf("bad %s: accepted", what)
		}
	}
}

// streams gives the world programs and an image as real ones are.
func streams(t *testing.T, w *world) *world {
	w.Runner = host.Exec{}
	p := w.pool(t)
	file := filepath.Join(p.Path("images/base@1"), "image.json")
	var img image.Image
	must(host.ReadJSON(file, &img))
	img.UUID = "00000000-0000-4000-8000-000000000001"
	must(p.SetReadOnly(t.Context(), "images/base@1", false))
	must(host.WriteJSON(file, img, false))
	return w
}

// cloned makes the zone b on a layer of a, with data of its own.
func cloned(t *testing.T, w *world) {
	streams(t, w)
	w.create(t, "a")
	put(w.upper(t, "a", "below"), "layer")
	must(w.Clone(t.Context(), "a", []string{"b"}))
	put(w.upper(t, "b", "data"), "own")
}

func (w *world) sent(t *testing.T, c SendSpec) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := w.Send(t.Context(), c, &b); err != nil {
		t.Fatal(err)
	}
	w.whole(t)
	return b.Bytes()
}

func TestSendAndReceive(t *testing.T) {
	w := newWorld(t)
	cloned(t, w)
	before := w.record(t, "b")
	must(w.setNext(w.at(t, "b"), before, "x"))
	stream := w.sent(t, SendSpec{Zone: "b"})

	other := newWorld(t)
	other.Runner = host.Exec{}
	name, err := other.Receive(t.Context(), ReceiveSpec{}, bytes.NewReader(stream))
	if err != nil || name != "b" {
		t.Fatal(name, err)
	}
	other.whole(t)
	r := other.record(t, "b")
	// base@1 there is another image: the one that came is the next version.
	want := before
	want.Image = "base@2"
	if d := cmp.Diff(want, r, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Errorf("record (-sent +received):\n%s", d)
	}
	layer := other.pool(t).Path("layers/" + r.Layers[0])
	if get(other.upper(t, "b", "data")) != "own" || get(filepath.Join(layer, "upper/below")) != "layer" {
		t.Error("the files are not those that were sent")
	}
	if img, err := other.Images(other.pool(t)).Get(t.Context(), "base@2"); err != nil || img.UUID != "00000000-0000-4000-8000-000000000001" {
		t.Errorf("%+v, %v", img, err)
	}
	// Again, beside the first: what is there is used, the identity is new.
	if _, err := other.Receive(t.Context(), ReceiveSpec{Zone: "c"}, bytes.NewReader(stream)); err != nil {
		t.Fatal(err)
	}
	other.whole(t)
	c := other.record(t, "c")
	if c.UUID == r.UUID || c.Address == r.Address || c.ClonedOf != "b" || c.Image != r.Image || len(other.layers(t)) != 1 {
		t.Errorf("%+v beside %+v", c, r)
	}
	if got := get(other.upper(t, "c", "etc/hostname")); got != "c\n" {
		t.Errorf("host name %q", got)
	}
	_, err = other.Receive(t.Context(), ReceiveSpec{}, bytes.NewReader(stream))
	if !errdefs.Is(err, errdefs.WrongState) {
		t.Errorf("a name that is taken: %v", err)
	}
	must(other.Delete(t.Context(), "b", false))
	must(other.Delete(t.Context(), "c", false))
	other.whole(t)
}

func TestSendSnapshotOfWholeRoot(t *testing.T) {
	w := streams(t, newWorld(t))
	w.createWhole(t, "a")
	data := w.at(t, "a").activePath("root/data")
	put(data, "then")
	must(w.Snapshot(t.Context(), "a", "s"))
	put(data, "now")
	stream := w.sent(t, SendSpec{Zone: "a", Snapshot: "s"})
	must(w.Delete(t.Context(), "a", false))
	if _, err := w.Receive(t.Context(), ReceiveSpec{Zone: "renamed"}, bytes.NewReader(stream)); err != nil {
		t.Fatal(err)
	}
	w.whole(t)
	at := w.at(t, "renamed")
	if get(at.activePath("root/data")) != "then" || get(at.activePath("root/etc/hostname")) != "renamed\n" {
		t.Errorf("data %q, host name %q", get(at.activePath("root/data")), get(at.activePath("root/etc/hostname")))
	}
	if err := w.Send(t.Context(), SendSpec{Zone: "renamed", Snapshot: "s"}, io.Discard); !errdefs.Is(err, errdefs.NotFound) {
		t.Errorf("a snapshot that is not there: %v", err)
	}
}

// Cut off or damaged anywhere, a stream leaves nothing.
func TestReceiveDamaged(t *testing.T) {
	w := newWorld(t)
	cloned(t, w)
	stream := w.sent(t, SendSpec{Zone: "b"})
	for i := range 12 {
		other := newWorld(t)
		other.Runner = host.Exec{}
		at := len(stream) * i / 12
		bad := bytes.Clone(stream)
		bad[at] ^= 4
		for _, data := range [][]byte{stream[:at], bad} {
			if _, err := other.Receive(t.Context(), ReceiveSpec{}, bytes.NewReader(data)); err == nil {
				t.Errorf("damage at %d: received", at)
			}
		}
		other.whole(t)
		if left := names(other.pool(t).Path("images")); len(left) != 1 || other.exists(t, "b") {
			t.Errorf("damage at %d leaves images %v", at, left)
		}
	}
}

// failingWriter is a reader that goes away.
type failingWriter struct{ left int }

func (f *failingWriter) Write(b []byte) (int, error) {
	if f.left -= len(b); f.left < 0 {
		return 0, errors.New("gone")
	}
	return len(b), nil
}

func TestSendToNobody(t *testing.T) {
	w := newWorld(t)
	cloned(t, w)
	for _, left := range []int{0, 100, 5000} {
		if err := w.Send(t.Context(), SendSpec{Zone: "b"}, &failingWriter{left}); err == nil {
			t.Errorf("nobody read more than %d bytes, and no error", left)
		}
		w.whole(t)
	}
}

// A link instead of a directory would lead the host's own files into the zone.
func TestReceiveRefusesLinks(t *testing.T) {
	for _, spoil := range []string{"upper", "work", "other"} {
		w := newWorld(t)
		cloned(t, w)
		dir := w.at(t, "b").activePath("")
		must(os.RemoveAll(filepath.Join(dir, spoil)))
		must(os.Symlink("/", filepath.Join(dir, spoil)))
		var stream bytes.Buffer
		must(w.Send(t.Context(), SendSpec{Zone: "b"}, &stream))
		_, err := w.Receive(t.Context(), ReceiveSpec{Zone: "c"}, &stream)
		if err == nil || !strings.Contains(err.Error(), "something else than files and directories") {
			t.Errorf("%s a link: %v", spoil, err)
		}
		if w.exists(t, "c") || len(names(w.pool(t).Path("tmp"))) > 0 {
			t.Error("it left something")
		}
	}
}

func TestReceiveForAnotherKindOfPool(t *testing.T) {
	h := streamHeader{Zone: "a", Parts: []streamPart{{partZone, "a", encodingBtrfs}}}
	w := newWorld(t)
	if err := h.fits(w.pool(t)); !errdefs.Is(err, errdefs.NotSupported) || !strings.Contains(errdefs.HintOf(err), "--portable") {
		t.Errorf("%v", err)
	}
}

func TestAddressFor(t *testing.T) {
	w := newWorld(t)
	a, taken, foreign := netip.MustParseAddr("10.9.0.7"), netip.MustParseAddr("10.9.0.8"), netip.MustParseAddr("192.0.2.1")
	for had, want := range map[netip.Addr]string{a: "10.9.0.7", taken: "10.9.0.2", foreign: "10.9.0.2", {}: "10.9.0.2"} {
		got, err := w.addressFor(had, []netip.Addr{taken})
		if err != nil || got.String() != want {
			t.Errorf("for %s: %s, %v", had, got, err)
		}
	}
}

func TestKilledSend(t *testing.T) {
	killEverywhere(t, []string{"send", "b", "file"}, cloned, func(t *testing.T, w *world) {
		must(w.do(t.Context(), []string{"send", "b", "file"}))
	})
}

func TestKilledReceive(t *testing.T) {
	prepare := func(t *testing.T, w *world) {
		cloned(t, w)
		must(w.do(t.Context(), []string{"send", "b", "file"}))
		must(w.Delete(t.Context(), "b", false))
		must(w.Delete(t.Context(), "a", false))
		must(w.pool(t).Delete(t.Context(), "images/base@1"))
	}
	killEverywhere(t, []string{"receive", "b", "file"}, prepare, func(t *testing.T, w *world) {
		w.finish(t, "b", "receive", "b", "file")
		if get(w.upper(t, "b", "data")) != "own" || len(w.layers(t)) != 1 || len(names(w.pool(t).Path("images"))) != 1 {
			t.Errorf("data %q, layers %v, images %v", get(w.upper(t, "b", "data")), w.layers(t), names(w.pool(t).Path("images")))
		}
	})
}

// sendFile and receiveFile do so by a file of the world.
func (w *world) sendFile(ctx context.Context, name, file string) error {
	w.Runner = host.Exec{}
	f, err := os.Create(filepath.Join(w.base, file))
	if err != nil {
		return err
	}
	return errors.Join(w.Send(ctx, SendSpec{Zone: name}, f), f.Close())
}

func (w *world) receiveFile(ctx context.Context, name, file string) error {
	w.Runner = host.Exec{}
	f, err := os.Open(filepath.Join(w.base, file))
	if err != nil {
		return err
	}
	defer f.Close()
	got, err := w.Receive(ctx, ReceiveSpec{Zone: name}, f)
	if err == nil && got != name {
		return fmt.Errorf("received %s", got)
	}
	return err
}

func TestStreamHeaderIsJSON(t *testing.T) {
	w := newWorld(t)
	cloned(t, w)
	stream := w.sent(t, SendSpec{Zone: "b"})
	var h map[string]any
	if _, err := newStreamReader(bytes.NewReader(stream), &h); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"schema", "zone", "uuid", "record", "config", "image", "parts", "backend"} {
		if h[key] == nil {
			b, _ := json.Marshal(h)
			t.Errorf("no %s in %s", key, b)
		}
	}
}
