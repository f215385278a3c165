# shellcheck shell=bash
# Makes container roots of different make below $1, of packages from the apt source in $2 (deb822).
# Runs on the machine that makes the guest. rhel-like has the glibc that Debian builds for i386's
# 64-bit programs: it searches /lib64 and /usr/lib64, as Red Hat's, and knows no multiarch directory.
set -euo pipefail
out=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
multiarch=usr/lib/x86_64-linux-gnu
loader=ld-linux-x86-64.so.2

fetch() {
  mkdir -p "$work"/{lists/partial,cache/archives/partial,sources}
  cp "$source" "$work/sources/guest.sources"
  local apt=(-qq -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$work/sources"
    -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o Dir::State::status=/dev/null
    -o APT::Architectures::=amd64 -o APT::Architectures::=i386 -o APT::Sandbox::User=root)
  apt-get "${apt[@]}" update
  (cd "$work" && apt-get "${apt[@]}" download libc6:amd64 libc6-amd64:i386 musl:amd64 \
    coreutils:amd64 busybox-static:amd64)
  for package in libc6 libc6-amd64 musl coreutils busybox-static; do
    dpkg-deb -x "$work/$package"_*.deb "$work/$package"
  done
}

# begin NAME: makes a root with a static shell in it.
begin() {
  root=$out/$1
  mkdir -p "$root"/{dev,etc,proc,sys,tmp,usr/bin,usr/lib}
  ln -s usr/bin "$root/bin"
  ln -s usr/lib "$root/lib"
  cp "$work/busybox-static/usr/bin/busybox" "$root/usr/bin/busybox"
  ln -s busybox "$root/usr/bin/sh"
}

# glibc FROM TO: copies a C library's files and a program that is linked with it.
glibc() {
  mkdir -p "$root/$2"
  for file in libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 "$loader"; do
    cp -L "$1/$file" "$root/$2/$file"
  done
  cp "$work/coreutils/usr/bin/true" "$root/usr/bin/true"
}

debian_like() {
  begin "$1"
  glibc "$work/libc6/$multiarch" "$multiarch"
  mkdir "$root/usr/lib64"
  ln -s usr/lib64 "$root/lib64"
  ln -s "../lib/x86_64-linux-gnu/$loader" "$root/usr/lib64/$loader"
}

# libcuda FILE: makes an empty library of that name.
libcuda() { echo | cc -shared -nostdlib -Wl,-soname,libcuda.so.1 -x c - -o "$1"; }

# cache DIRECTORY...: writes the root's ld.so.cache.
cache() {
  printf '%s\n' "$@" >"$root/etc/ld.so.conf"
  ldconfig -r "$root"
}

fetch

debian_like debian
cache /usr/local/lib "/$multiarch"

# No cache, and the variable of CUDA's images, which names directories that do not exist.
debian_like ubuntu-like
echo 'LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64' >"$root/etc/environment"

begin rhel-like
glibc "$work/libc6-amd64/usr/lib64" usr/lib64
ln -s usr/lib64 "$root/lib64"
cache /usr/lib64

begin no-lib64
glibc "$work/libc6/$multiarch" "$multiarch"
mkdir "$root/lib64"
ln -s "/$multiarch/$loader" "$root/lib64/$loader"
cache "/$multiarch"

# A libcuda in a directory of its own, which the cache names.
debian_like own-libcuda
mkdir -p "$root/usr/local/own"
libcuda "$root/usr/local/own/libcuda.so.1"
cache /usr/local/own "/$multiarch"

# A libcuda for forward compatibility, in the directory of CUDA's images; the second image says where it is.
for name in newer-cuda newer-cuda-on; do
  debian_like "$name"
  mkdir -p "$root/usr/local/cuda/compat"
  libcuda "$root/usr/local/cuda/compat/libcuda.so.1"
  cache "/$multiarch"
done
echo 'LD_LIBRARY_PATH=/usr/local/cuda/compat' >"$root/etc/environment"

# A libcuda in the place of the driver's, as of an image in which a driver was installed.
debian_like old-driver
libcuda "$root/$multiarch/libcuda.so.111.11"
ln -s libcuda.so.111.11 "$root/$multiarch/libcuda.so.1"
cache "/$multiarch"

begin musl
cp -L "$work/musl/usr/lib/x86_64-linux-musl/libc.so" "$root/usr/lib/ld-musl-x86_64.so.1"
