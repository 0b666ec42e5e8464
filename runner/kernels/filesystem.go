package kernels

import (
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/dflash-runner/dflash-runner/runner"
)

// networked are file systems that are reached over a network or through another
// program, by the magic number of statfs. Source: statfs(2), linux/magic.h, and
// the clients' own sources for those that the kernel does not carry.
var networked = map[int64]string{
	unix.NFS_SUPER_MAGIC: "NFS", unix.SMB_SUPER_MAGIC: "SMB", unix.CIFS_SUPER_MAGIC: "CIFS", unix.SMB2_SUPER_MAGIC: "SMB",
	unix.CEPH_SUPER_MAGIC: "Ceph", unix.AFS_SUPER_MAGIC: "AFS", unix.AFS_FS_MAGIC: "AFS", unix.CODA_SUPER_MAGIC: "Coda", unix.NCP_SUPER_MAGIC: "NCP",
	unix.V9FS_MAGIC: "9P", unix.FUSE_SUPER_MAGIC: "FUSE", unix.OCFS2_SUPER_MAGIC: "OCFS2",
	0x0BD00BD0: "Lustre", 0x47504653: "GPFS", 0x19830326: "BeeGFS", 0x013111A8: "IBRIX", 0xAAD7AAEA: "PanFS", 0x01161970: "GFS2",
	0xBACBACBC: "VMware's shared folders", 0x786F4256: "VirtualBox's shared folders", 0x7C7C6673: "Parallels' shared folders",
}

// Networked names a file system that is reached over a network, by what statfs
// says of it, or gives "".
func Networked(kind int64) string { return networked[kind&0xFFFFFFFF] }

// statfs is unix.Statfs, or a test's.
type statfs func(path string, s *unix.Statfs_t) error

// local refuses a directory that is not on a disk of this machine. One that is
// not there yet is where the nearest above it is.
func (stat statfs) local(dir string) error {
	var s unix.Statfs_t
	at := dir
	err := stat(at, &s)
	for errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at) {
		at = filepath.Dir(at)
		err = stat(at, &s)
	}
	if err != nil {
		return runner.Errorf(runner.Unavailable, "open kernel cache %s: statfs: %w", dir, err)
	}
	if name := Networked(int64(s.Type)); name != "" {
		return runner.Errorf(runner.Exhausted, "open kernel cache %s: want a disk of this machine, got %s", dir, name).
			WithHint("set warmup.cache_directory to a local directory: workers would wait for each other's files and locks over the network, and nodes with other GPUs would share them")
	}
	return nil
}
