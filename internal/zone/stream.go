package zone

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync"

	"zone/internal/errdefs"
)

// A zone's stream is the magic line and frames: a letter, the length of the
// content as four bytes, the highest first, and the content.
//
//	H  what the stream holds, JSON; first and once
//	P  a part begins; its number in the header
//	D  bytes of the part
//	E  the part ends; SHA-256 of its bytes
//	T  the stream ends; SHA-256 of all bytes before this frame
const (
	streamMagic = "zone stream 1\n"

	frameHeader  = 'H'
	framePart    = 'P'
	frameData    = 'D'
	frameEnd     = 'E'
	frameTrailer = 'T'

	maxFrame = 1 << 20 // bytes; what the reader keeps in memory at most
)

// streamWriter writes frames and hashes all of them.
type streamWriter struct {
	w    io.Writer
	hash hash.Hash
}

func newStreamWriter(w io.Writer, header any) (*streamWriter, error) {
	s := &streamWriter{w: w, hash: sha256.New()}
	data, err := json.Marshal(header)
	if err != nil {
		return nil, err
	}
	if len(data) > maxFrame {
		return nil, fmt.Errorf("the header takes %d bytes, more than a stream can hold", len(data))
	}
	if err := s.write([]byte(streamMagic)); err != nil {
		return nil, err
	}
	return s, s.frame(frameHeader, data)
}

func (s *streamWriter) write(b []byte) error {
	s.hash.Write(b)
	_, err := s.w.Write(b)
	return err
}

func (s *streamWriter) frame(kind byte, data []byte) error {
	var head [5]byte
	head[0] = kind
	binary.BigEndian.PutUint32(head[1:], uint32(len(data)))
	if err := s.write(head[:]); err != nil {
		return err
	}
	return s.write(data)
}

// part writes one part, which fill produces.
func (s *streamWriter) part(number int, fill func(io.Writer) error) error {
	if err := s.frame(framePart, binary.BigEndian.AppendUint32(nil, uint32(number))); err != nil {
		return err
	}
	p := &partWriter{s: s, hash: sha256.New()}
	if err := fill(p); err != nil {
		return err
	}
	return s.frame(frameEnd, p.hash.Sum(nil))
}

func (s *streamWriter) end() error { return s.frame(frameTrailer, s.hash.Sum(nil)) }

type partWriter struct {
	s    *streamWriter
	hash hash.Hash
}

// Write makes frames of the bytes of a part.
func (p *partWriter) Write(b []byte) (int, error) {
	written := 0
	for len(b) > 0 {
		n := min(len(b), maxFrame)
		if err := p.s.frame(frameData, b[:n]); err != nil {
			return written, err
		}
		p.hash.Write(b[:n])
		written, b = written+n, b[n:]
	}
	return written, nil
}

// streamReader reads frames and hashes all of them.
type streamReader struct {
	r    io.Reader
	hash hash.Hash
}

// newStreamReader reads the beginning of a stream and its header.
func newStreamReader(r io.Reader, header any) (*streamReader, error) {
	s := &streamReader{r: r, hash: sha256.New()}
	magic := make([]byte, len(streamMagic))
	if _, err := io.ReadFull(r, magic); err != nil || string(magic) != streamMagic {
		return nil, badStream("it does not begin as the stream of a zone")
	}
	s.hash.Write(magic)
	data, err := s.expect(frameHeader)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, header); err != nil {
		return nil, badStream("its header cannot be read: " + err.Error())
	}
	return s, nil
}

func badStream(why string) error { return errdefs.New(errdefs.Failed, "read the stream", "%s", why) }

// next reads a frame. The trailer is not in the sum that it holds.
func (s *streamReader) next() (kind byte, data []byte, sum []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(s.r, head[:]); err != nil {
		return 0, nil, nil, cutStream(err)
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxFrame {
		return 0, nil, nil, badStream("it is damaged: a frame is too long")
	}
	data = make([]byte, n)
	if _, err := io.ReadFull(s.r, data); err != nil {
		return 0, nil, nil, cutStream(err)
	}
	sum = s.hash.Sum(nil)
	s.hash.Write(head[:])
	s.hash.Write(data)
	return head[0], data, sum, nil
}

func cutStream(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return badStream("it ends early")
	}
	return fmt.Errorf("read the stream: %w", err)
}

func (s *streamReader) expect(kind byte) ([]byte, error) {
	got, data, _, err := s.next()
	if err == nil && got != kind {
		err = badStream(fmt.Sprintf("it is damaged: a frame %q where %q should be", got, kind))
	}
	return data, err
}

// part begins the part of that number.
func (s *streamReader) part(number int) (*partReader, error) {
	data, err := s.expect(framePart)
	if err != nil {
		return nil, err
	}
	if len(data) != 4 || binary.BigEndian.Uint32(data) != uint32(number) {
		return nil, badStream("it is damaged: its parts are out of order")
	}
	return &partReader{s: s, hash: sha256.New()}, nil
}

// end reads the trailer and compares the sum of the whole stream.
func (s *streamReader) end() error {
	kind, data, sum, err := s.next()
	if err != nil {
		return err
	}
	if kind != frameTrailer || string(data) != string(sum) {
		return badStream("it is damaged: its checksum does not match")
	}
	return nil
}

// partReader gives the bytes of a part. It may be read from two goroutines:
// the one that feeds a program, and the one that reads what that left.
type partReader struct {
	mu   sync.Mutex
	s    *streamReader
	hash hash.Hash
	left []byte
	err  error // io.EOF when the part was whole
}

// Read returns io.EOF only when the part's sum matches.
func (p *partReader) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.left) == 0 && p.err == nil {
		p.fill()
	}
	if len(p.left) == 0 {
		return 0, p.err
	}
	n := copy(b, p.left)
	p.left = p.left[n:]
	return n, nil
}

func (p *partReader) fill() {
	kind, data, _, err := p.s.next()
	switch {
	case err != nil:
		p.err = err
	case kind == frameData:
		p.hash.Write(data)
		p.left = data
	case kind == frameEnd && string(data) == string(p.hash.Sum(nil)):
		p.err = io.EOF
	case kind == frameEnd:
		p.err = badStream("it is damaged: the checksum of a part does not match")
	default:
		p.err = badStream(fmt.Sprintf("it is damaged: a frame %q within a part", kind))
	}
}

// finish reads the part to its end and says whether it was whole.
func (p *partReader) finish() error {
	_, err := io.Copy(io.Discard, p)
	return err
}
