"""Sentence forms and question templates of the demo set's train part (grammar: see `forms.py`)."""

__all__ = ["TRAIN"]

TRAIN = """
* same: , and / ;
* other: , while / ; / , and
* intro: {X} and {Y} are often named together / Much has been written about {X} and about {Y}
* intro: Two well-known {P} are {X} and {Y} / Few {P} are better known than {X} and {Y}
* aside: {person}, a teacher from {place}, wrote a song about {S} in {year}
* aside: A model of {S} was given to {person} in {year} / In {year} the {org} printed a map that shows {S}
* aside: {person} and {person} once argued about {S} in a newspaper
* aside: Every summer the {org} holds a lecture on {S}, most recently by {person}
* aside: A poem by {person} of {place} mentions {S} / Stamps with a picture of {S} were drawn by {person}

# expedition
leader > {S} was led by {A} / {A} was in command of {S} / the leader of {S} was {A}
leader ? Who led {S}? / Who commanded {S}? / Under whose leadership was {S}?
doctor > the doctor on {S} was {A} / {A} looked after the sick on {S} / {A} went with {S} as its surgeon
doctor ? Who was the doctor of {S}? / Who treated the sick on {S}? / Which surgeon took part in {S}?
year > {S} set out in {A} / in {A} {S} began / {S} left home in the year {A}
year ? When did {S} set out? / In what year did {S} start? / What year saw the departure of {S}?
goal > {S} reached {A} / the target of {S} was {A} / {S} got as far as {A}
goal ? Where did {S} go? / What was the destination of {S}? / Which place did {S} arrive at?
funder > {S} was paid for by the {A} / the {A} gave the money for {S} / the costs of {S} were met by the {A}
funder ? Who paid for {S}? / Which body financed {S}? / Where did the money for {S} come from?
days > {S} took {A} / {A} passed before {S} was over / {S} was away for {A}
days ? How long did {S} last? / How much time did {S} need? / For how many days was {S} away?

# bridge
designer > {S} was designed by {A} / {A} drew the plans of {S} / the engineer behind {S} was {A}
designer ? Who designed {S}? / Which engineer planned {S}? / Who was the engineer of {S}?
opener > {A} cut the ribbon at {S} / {S} was declared open by {A} / {A} opened {S} to traffic
opener ? Who opened {S}? / By whom was {S} inaugurated? / Who held the opening ceremony of {S}?
river > {S} spans the river {A} / the river under {S} is called the {A} / {S} leads across the {A}
river ? Which river does {S} cross? / What water flows under {S}? / Over what river does {S} go?
length > {S} is {A} long / from end to end {S} measures {A} / {S} has a length of {A}
length ? How long is {S}? / What is the length of {S}? / What distance does {S} cover?
year > {S} dates from {A} / {S} was finished in {A} / work on {S} ended in {A}
year ? When was {S} completed? / In what year was {S} built? / From what year is {S}?
material > {S} is made of {A} / {A} was used to build {S} / the arches of {S} are of {A}
material ? What is {S} made of? / Which material was {S} built from? / What was used to construct {S}?

# company
founder > {S} was founded by {A} / {A} started {S} / {S} goes back to a workshop of {A}
founder ? Who founded {S}? / Who set up {S}? / Which person established {S}?
manager > {S} is now run by {A} / {A} is the present head of {S} / today {A} manages {S}
manager ? Who runs {S} today? / Who is the current manager of {S}? / Who is in charge of {S} now?
town > {S} is based in {A} / the offices of {S} are in {A} / {S} has its seat at {A}
town ? Where is {S} based? / In which town are the headquarters of {S}? / Where does {S} have its offices?
product > {S} makes {A} / {S} is known for its {A} / {A} come out of the factory of {S}
product ? What does {S} produce? / What is manufactured by {S}? / Which goods does {S} sell?
workers > {S} employs {A} people / {A} workers earn their living at {S} / the staff of {S} numbers {A}
workers ? How many people work for {S}? / How large is the workforce of {S}? / How many employees does {S} have?
year > {S} was set up in {A} / {S} has existed since {A} / in {A} {S} opened its doors
year ? When was {S} founded? / Since what year has {S} existed? / In which year was {S} established?

# painting
painter > {S} was painted by {A} / {A} is the painter of {S} / {S} is the work of {A}
painter ? Who painted {S}? / Which artist made {S}? / Whose work is {S}?
buyer > {S} was bought by {A} / {A} paid for {S} at a sale / the collector {A} acquired {S}
buyer ? Who bought {S}? / Which collector purchased {S}? / Who was the buyer of {S}?
gallery > {S} hangs in the {A} / {S} can be seen at the {A} / the {A} keeps {S}
gallery ? Where is {S} on show? / Which institution holds {S}? / Where does {S} hang?
year > {S} was made in {A} / {S} bears the date {A} / in {A} {S} left the studio
year ? When was {S} painted? / From which year is {S}? / In what year was {S} created?
price > {S} was sold for {A} / {A} were paid for {S} / {S} fetched {A}
price ? How much did {S} cost? / What was the price of {S}? / For what sum did {S} change hands?
sitter > {S} shows {A} / the person in {S} is {A} / {A} sat as the model for {S}
sitter ? Who is shown in {S}? / Who was the model for {S}? / Which person does {S} portray?

# comet
finder > {S} was first seen by {A} / {A} discovered {S} / {S} was found by {A} with a small telescope
finder ? Who discovered {S}? / Who was the first to see {S}? / Which astronomer found {S}?
orbit > the path of {S} was worked out by {A} / {A} calculated the orbit of {S} / {A} computed when {S} returns
orbit ? Who calculated the path of {S}? / Who computed the orbit of {S}? / Whose calculations describe the way of {S}?
site > {S} was spotted from {A} / it was at {A} that {S} was noticed / a telescope at {A} picked up {S}
site ? Where was {S} spotted? / From which town was {S} first observed? / At what place was {S} noticed?
period > {S} comes back every {A} / {S} needs {A} to go round the sun / a full round of {S} takes {A}
period ? How often does {S} return? / How long is the period of {S}? / How long does {S} take for one orbit?
year > {S} appeared in {A} / {S} passed the earth in {A} / the sighting of {S} was in {A}
year ? When did {S} appear? / In which year was {S} observed? / What year did {S} come by?
colour > {S} has a {A} tail / the tail of {S} looks {A} / {S} shone with a {A} light
colour ? What colour is {S}? / In which colour does {S} shine? / What is the colour of the tail of {S}?

# dish
inventor > {S} was invented by {A} / {A} was the first to cook {S} / {S} is a creation of {A}
inventor ? Who invented {S}? / Which cook created {S}? / Who first made {S}?
writer > the recipe of {S} was written down by {A} / {A} printed how to make {S} / {A} put {S} into a cookbook
writer ? Who wrote down the recipe of {S}? / Who published {S} in a book? / Whose cookbook contains {S}?
town > {S} comes from {A} / the home of {S} is {A} / {S} was first cooked in {A}
town ? Where does {S} come from? / Which town is the home of {S}? / From what place is {S}?
filling > {S} contains {A} / {A} go into {S} / the taste of {S} is that of {A}
filling ? What is {S} made with? / What is the main ingredient of {S}? / Which food does {S} contain?
time > {S} cooks for {A} / {S} is left on the fire for {A} / after {A} {S} is ready
time ? How long does {S} need to cook? / How much time does {S} take? / For how many minutes is {S} cooked?

# club
captain > {S} is captained by {A} / the captain of {S} is {A} / {A} leads {S} on the pitch
captain ? Who is the captain of {S}? / Who captains {S}? / Which player leads {S}?
coach > {S} is trained by {A} / the coach of {S} is {A} / {A} was hired to train {S}
coach ? Who coaches {S}? / Who is the trainer of {S}? / Who prepares {S} for its games?
ground > {S} plays its games at {A} / the home ground of {S} is at {A} / {S} has a stadium in {A}
ground ? Where does {S} play? / What is the home ground of {S}? / Where is the stadium of {S}?
colour > {S} plays in {A} / the shirts of {S} are {A} / {A} is the colour of {S}
colour ? What colour does {S} wear? / In which colour does {S} play? / What is the colour of the kit of {S}?
year > {S} was formed in {A} / {S} came together in {A} / the history of {S} began in {A}
year ? When was {S} formed? / Since what year has {S} existed? / In which year was {S} founded?
crowd > {A} people watch {S} on a good day / {S} draws a crowd of {A} / a match of {S} is seen by {A} people
crowd ? How many people watch {S}? / How many spectators does {S} have? / What is the attendance of {S}?

# instrument
maker > {S} was built by {A} / {A} made {S} by hand / {S} carries the mark of {A}
maker ? Who made {S}? / Who was the builder of {S}? / Which craftsman built {S}?
player > {S} is now played by {A} / {A} plays {S} in concerts / {A} gave a concert on {S}
player ? Who plays {S}? / Which musician uses {S}? / Who performs on {S}?
wood > the back of {S} is of {A} / {S} is cut from {A} / {A} was chosen for the body of {S}
wood ? What is {S} made of? / Which material is the body of {S}? / From what was {S} cut?
town > {S} was made at a workshop in {A} / the label of {S} names {A} / {S} was born in {A}
town ? Where was {S} made? / In what town was {S} built? / From which place is {S}?
year > {S} is from {A} / {S} was completed in {A} / the maker signed {S} in {A}
year ? When was {S} built? / From what year is {S}? / In which year was {S} made?
price > {S} cost {A} / {S} is insured for {A} / the value of {S} is put at {A}
price ? How much is {S} worth? / What is the value of {S}? / How high is the value of {S}?

# island
explorer > {S} was first mapped by {A} / {A} was the first to set foot on {S} / {S} was discovered by {A}
explorer ? Who discovered {S}? / Who first landed on {S}? / Which sailor found {S}?
owner > {S} belongs to {A} / {A} is the owner of {S} / {S} is the property of {A}
owner ? Who owns {S}? / To whom does {S} belong? / Who has {S} as private property?
harbour > the harbour of {S} is {A} / boats to {S} land at {A} / the landing place of {S} is {A}
harbour ? What is the harbour of {S} called? / Where do boats land on {S}? / What is the port of {S}?
people > {S} has {A} inhabitants / {A} people live on {S} / the population of {S} is {A}
people ? How many people live on {S}? / How large is the population of {S}? / How many inhabitants does {S} have?
animal > {S} is full of {A} / {A} live on {S} / {S} is known for its {A}
animal ? Which animals live on {S}? / What animals is {S} known for? / Which wild animals are there on {S}?

# law
author > {S} was drafted by {A} / {A} wrote the text of {S} / {S} was put forward by {A}
author ? Who wrote {S}? / Who proposed {S}? / Which politician drafted {S}?
enemy > {A} spoke against {S} / {S} was fought by {A} / the loudest voice against {S} was {A}
enemy ? Who opposed {S}? / Who was against {S}? / Which person fought {S}?
year > {S} was passed in {A} / {S} has been in force since {A} / in {A} {S} became law
year ? When was {S} passed? / In what year did {S} become law? / Since when has {S} been in force?
fine > whoever breaks {S} pays {A} / {S} sets a fine of {A} / the penalty under {S} is {A}
fine ? How much is the fine under {S}? / What must one pay for breaking {S}? / What penalty does {S} set?
votes > {S} won {A} votes / {A} members voted for {S} / {S} was carried with {A} votes
votes ? How many votes did {S} get? / How many members were in favour of {S}? / By how many votes was {S} carried?

# battle
victor > {S} was won by {A} / {A} was the victor of {S} / {S} ended in a triumph for {A}
victor ? Who won {S}? / Which general was victorious in {S}? / Whose army had success in {S}?
loser > {A} was beaten in {S} / {S} was a defeat for {A} / the losing side in {S} stood under {A}
loser ? Who lost {S}? / Which general was defeated in {S}? / Who was beaten in {S}?
year > {S} was fought in {A} / {S} took place in {A} / the date of {S} is {A}
year ? When was {S} fought? / In what year did {S} happen? / What is the year of {S}?
dead > {A} soldiers died in {S} / {S} cost {A} lives / the dead of {S} numbered {A}
dead ? How many people died in {S}? / How many soldiers were killed in {S}? / How many lives did {S} cost?
place > {S} took place near {A} / the field of {S} lies at {A} / {S} was fought outside {A}
place ? Where was {S} fought? / Near which town was {S}? / At what place did {S} happen?

# theatre
architect > {S} was planned by {A} / the architect of {S} was {A} / {A} designed {S}
architect ? Who designed {S}? / Which architect planned {S}? / Who was the architect of {S}?
director > {S} is directed by {A} / {A} heads {S} / the plays at {S} are chosen by {A}
director ? Who directs {S}? / Who is the head of {S}? / Which director leads {S}?
seats > {S} seats {A} people / {S} has room for {A} guests / there are {A} chairs in {S}
seats ? How many seats does {S} have? / How many people fit into {S}? / What is the capacity of {S}?
town > {S} stands in {A} / {S} is in the middle of {A} / people go to {A} to visit {S}
town ? Where is {S}? / In which town does {S} stand? / Where can one visit {S}?
year > {S} opened in {A} / the first evening at {S} was in {A} / {S} has been playing since {A}
year ? When was {S} opened? / In what year did {S} start? / Since when has {S} been open?
cost > {S} cost {A} to build / {A} were spent on {S} / the bill for {S} came to {A}
cost ? How much did {S} cost? / What was spent on {S}? / What were the costs of {S}?

# ship
captain > the captain of {S} was {A} / {S} sailed under {A} / {A} stood on the bridge of {S}
captain ? Who was the captain of {S}? / Who commanded {S}? / Which sailor was in charge of {S}?
owner > {S} belonged to {A} / {A} was the owner of {S} / {S} was run by the merchant {A}
owner ? Who owned {S}? / To whom did {S} belong? / Which merchant had {S}?
port > the home port of {S} was {A} / {S} was at home in {A} / {S} was registered in {A}
port ? What was the home port of {S}? / Which port did {S} belong to? / In which port was {S} at home?
cargo > {S} was loaded with {A} / {S} carried {A} / the cargo of {S} was {A}
cargo ? What did {S} carry? / What was the cargo of {S}? / Which goods were on board {S}?
year > {S} sank in {A} / {S} was lost in {A} / the wreck of {S} dates from {A}
year ? When did {S} sink? / In what year was {S} lost? / What year did {S} go down?

# newspaper
editor > {S} is edited by {A} / the editor of {S} is {A} / {A} writes the leading articles of {S}
editor ? Who edits {S}? / Who is the editor of {S}? / Which journalist leads {S}?
owner > {S} is owned by {A} / {A} has bought {S} / {S} is in the hands of {A}
owner ? Who owns {S}? / To whom does {S} belong? / Which person is the proprietor of {S}?
town > {S} is printed in {A} / {S} comes off the press in {A} / {S} appears at {A}
town ? Where is {S} printed? / In which town does {S} appear? / Where is {S} published?
copies > {S} sells {A} copies / {A} copies of {S} are printed / {S} goes out in {A} copies
copies ? How many copies does {S} sell? / What is the circulation of {S}? / How large is the print run of {S}?
year > {S} was first printed in {A} / {S} was started in {A} / number one of {S} is dated {A}
year ? When was {S} founded? / In what year did {S} first appear? / Since what year has {S} existed?
"""
