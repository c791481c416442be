package dir

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// Created returns when the dataset's directory was made.
func (p *Pool) Created(_ context.Context, dataset string) (time.Time, error) {
	f, err := p.open(dataset)
	if err != nil {
		return time.Time{}, p.wrap("age of", dataset, err)
	}
	defer f.Close()
	var st unix.Statx_t
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BTIME|unix.STATX_CTIME, &st); err != nil {
		return time.Time{}, p.wrap("age of", dataset, err)
	}
	when := st.Btime
	if st.Mask&unix.STATX_BTIME == 0 {
		when = st.Ctime // the file system does not keep it; the last change is the best there is
	}
	return time.Unix(when.Sec, int64(when.Nsec)), nil
}
