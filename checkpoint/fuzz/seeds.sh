#!/bin/sh
# Creates the initial corpora from the golden checkpoints. Requires only POSIX tools, and perl to encode the
# size of a file as 8 little-endian bytes.
set -eu
cd "$(dirname "$0")"
mkdir -p corpus/header corpus/manifest corpus/part

for dir in ../tests/golden/*/; do
    name=$(basename "$dir")
    for file in "$dir"*.safetensors; do
        bytes=$(wc -c < "$file" | tr -d ' ')
        n=$(perl -e 'read STDIN, $_, 8; print unpack "Q<", $_' < "$file")
        seed="corpus/header/$name-$(basename "$file")"
        # The size of the file, and its start.
        { perl -e 'print pack "Q<", shift' "$bytes"; head -c $((8 + n)) "$file"; } > "$seed"
        # The size of the data, and the JSON alone.
        {
            perl -e 'print pack "Q<", shift' $((bytes - 8 - n))
            tail -c +9 "$file" | head -c "$n"
        } > "$seed.json"
    done
    manifest="${dir}manifest.json"
    cp "$manifest" "corpus/manifest/$name"
    # Without the 54 bytes before the body, and without the brace and the newline after it.
    body=$(mktemp)
    tail -c +55 "$manifest" > "$body"
    bytes=$(wc -c < "$body" | tr -d ' ')
    head -c $((bytes - 2)) "$body" > "corpus/manifest/$name.body"
    # A part has the manifest's lists, and few other fields.
    perl -0777 -MJSON::PP -ne '
        my $json = JSON::PP->new->canonical->allow_bignum;
        my $all = $json->decode($_);
        my %part = map { $_ => $all->{$_} } qw(version attempt files tensors scalars);
        print $json->encode({%part, format => "tinderbox-checkpoint-part", rank => 0});
    ' "corpus/manifest/$name.body" > "corpus/part/$name.body"
    rm "$body"
done

# Bodies of 90 to 360 KB: many scalars, much metadata, a large unknown field.
for field in scalars metadata later; do
    for entries in 2000 8000; do
        perl -0777 -MJSON::PP -e '
            my ($field, $entries, $file) = @ARGV;
            my $json = JSON::PP->new->canonical->allow_bignum;
            open my $in, "<", $file or die; my $all = $json->decode(<$in>);
            my @list = map { {name => sprintf("time.%06d", $_), value => {uint => $_}} } 1 .. $entries;
            $all->{$field} = \@list;
            print $json->encode($all);
        ' "$field" "$entries" corpus/manifest/version-1-chunks.body > "corpus/manifest/large-$field-$entries.body"
    done
done
