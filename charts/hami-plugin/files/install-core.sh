# Install HAMi-core's files from $SOURCE into $TARGET, which running pods have mounts from.
#
# A library is kept under the name of its content, libvgpu.so.<sha256>, which is written once and never
# again. The name that pods are given is a link to it in the same directory, and a rename swaps it:
# running pods keep the file that they have, new ones get the new. Broken off at any point, what pods are
# given is whole, and the next run goes on.
set -eu

exec 9> "$TARGET/.install.lock"
if command -v flock > /dev/null; then flock 9; fi

# Where a container was started before its file was there, the runtime has left an empty directory.
swap() {
    if [ -d "$2" ] && [ ! -L "$2" ]; then rmdir "$2"; fi
    mv -fT "$1" "$2"
}

keep() { # the file $1 as $2, whole and on the disk
    rm -f "$TARGET/.new"
    cp "$1" "$TARGET/.new"
    sync "$TARGET/.new"
    swap "$TARGET/.new" "$2"
}

link() { # the library $1 as $2
    digest=$(sha256sum "$1")
    content="${2%%.so*}.so.$(printf %.16s "$digest")"
    cmp -s "$1" "$TARGET/$content" || keep "$1" "$TARGET/$content"
    if [ -L "$TARGET/$2" ] && [ "$(readlink "$TARGET/$2")" = "$content" ]; then return; fi
    rm -f "$TARGET/.new"
    ln -s "$content" "$TARGET/.new"
    swap "$TARGET/.new" "$TARGET/$2"
}

for file in "$SOURCE"/*; do
    name=$(basename "$file")
    case $name in
        ld.so.preload) ;;
        *.so | *.so.*) [ ! -f "$file" ] || link "$file" "$name" ;;
        *) if [ -f "$file" ] && ! cmp -s "$file" "$TARGET/$name"; then keep "$file" "$TARGET/$name"; fi ;;
    esac
done

# Last: once it is there, programs look for the library that it names. $TARGET is the same here, on the host
# and in the pods that are given the library.
printf '%s\n' "$TARGET/libvgpu.so" > "$TARGET/.preload"
cmp -s "$TARGET/.preload" "$TARGET/ld.so.preload" || keep "$TARGET/.preload" "$TARGET/ld.so.preload"
rm -f "$TARGET/.preload"
sync "$TARGET"
